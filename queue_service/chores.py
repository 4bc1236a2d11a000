"""Chores: small periodic tasks, each one bounded step at a time.

A chore that fails because the store is away is tried again at its next time; any other failure
ends the daemon, which is the safe end of a state nobody has thought of.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from queue_service.errors import StoreUnavailable

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chore:
    """`run` every `every_s` seconds; `jitter` spreads daemons that were started together."""

    name: str
    every_s: float
    run: Callable[[], Awaitable[int]]
    jitter: float = 0.0


async def keep_doing(chore: Chore) -> None:
    """Do a chore until cancelled."""
    while True:
        spread = random.uniform(-chore.jitter, chore.jitter)  # noqa: S311
        await asyncio.sleep(chore.every_s * (1 + spread))
        try:
            await chore.run()
        except StoreUnavailable as error:
            log.warning("chore.store_away", chore=chore.name, reason=str(error))
