"""Waiting in tests: for a condition and with a deadline, never for a while."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

_LOOK_EVERY_S = 0.01


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], within_s: float = 20.0
) -> None:
    """Return as soon as the condition holds; TimeoutError when it does not in time."""
    async with asyncio.timeout(within_s):
        while True:
            holds = condition()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            await asyncio.sleep(_LOOK_EVERY_S)
