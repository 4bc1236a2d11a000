"""Insisting: doing something in the store however long the store is away.

For what must not be dropped: accepted batches and finished results. Whatever may as well be done
later (a chore, a look at what waits) does not insist.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from queue_service.errors import StoreUnavailable

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S = 0.1
_LAST_PAUSE_S = 5.0
_T = TypeVar("_T")


async def insist(what: str, work: Callable[[], Awaitable[_T]]) -> _T:
    """Repeat `work`, which must be idempotent, until the store answers."""
    failures = 0
    while True:
        try:
            done = await work()
        except StoreUnavailable as error:
            failures += 1
            log.warning("store.away", what=what, failures=failures, reason=str(error))
            ceiling = min(_LAST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10))
            await asyncio.sleep(random.uniform(ceiling / 2, ceiling))  # noqa: S311
            continue
        if failures:
            log.info("store.back", what=what, failures=failures)
        return done
