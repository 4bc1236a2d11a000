"""A crew: tasks that live and end together.

Like a TaskGroup, with two differences. Whoever leads the crew is told of a failure instead of being
cancelled. And leaving insists: before Python 3.12 a library may swallow a cancellation (through
`asyncio.wait_for`), so one request to end is not enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Self

_CANCEL_EVERY_S = 0.5


class Crew:
    """Start tasks in it; `until` raises what any of them raised; leaving ends them all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def until(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set; raise as soon as a task has failed."""
        waiting = asyncio.create_task(stop.wait())
        either: set[asyncio.Future[Any]] = {waiting, self._failed}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._failed.done():
            self._failed.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=_CANCEL_EVERY_S)
        # Whoever left because of a failure has seen it; one that came while leaving is too late.
        if self._failed.done():
            self._failed.exception()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or self._failed.done():
            return
        error = task.exception()
        if error is not None:
            self._failed.set_exception(error)
