"""Settle: writes what became of batches, many in one go, each under its fence.

While one write is under way, what ends meanwhile gathers for the next. Where nobody waits for a
result, two writes are also kept a moment apart: what a majority write costs does not depend on how
much is in it. A batch stays held (and its lease renewed) until its end is written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import structlog

from queue_service import clock
from queue_service.batch import NewBatch, Settlement
from queue_service.insist import insist
from queue_service.store.base import BatchStore
from queue_service.waiters import Waiters

log = structlog.get_logger(__name__)

_GROUP_MAX = 128
_GROUP_MAX_BYTES = 16 << 20
_PACE_S = 0.01


@dataclass(frozen=True, slots=True)
class _Entry:
    settlement: Settlement
    written: asyncio.Future[bool]

    @property
    def size(self) -> int:
        done = self.settlement.finished
        return len(done.out) if done else 0


class Settler:
    """Takes settlements one by one and writes them in groups."""

    def __init__(
        self,
        store: BatchStore,
        waiters: Waiters,
        added: Callable[[Collection[NewBatch]], None],
    ) -> None:
        self._store = store
        self._waiters = waiters
        self._added = added
        self._queue: deque[_Entry] = deque()
        self._wake = asyncio.Event()
        self._write_at = 0.0
        self.stale = 0

    async def settle(self, settlement: Settlement) -> bool:
        """Write one settlement; answers when it is written. False: the batch was taken over."""
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queue.append(_Entry(settlement, written))
        self._wake.set()
        return await written

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                if not self._waiters:
                    await asyncio.sleep(self._write_at + _PACE_S - clock.monotonic())
                self._write_at = clock.monotonic()
                group = self._next_group()
                settlements = [entry.settlement for entry in group]
                # However long the store is away: the results exist nowhere else.
                accepted = await insist("settle", partial(self._store.settle, settlements))
                for entry, took_effect in zip(group, accepted, strict=True):
                    self._conclude(entry, took_effect)

    def _next_group(self) -> list[_Entry]:
        group = [self._queue.popleft()]
        size = group[0].size
        while self._queue and len(group) < _GROUP_MAX:
            size += self._queue[0].size
            if size > _GROUP_MAX_BYTES:
                break
            group.append(self._queue.popleft())
        return group

    def _conclude(self, entry: _Entry, took_effect: bool) -> None:
        if not entry.written.done():
            entry.written.set_result(took_effect)
        settlement = entry.settlement
        if not took_effect:
            self.stale += 1
            log.warning("settle.stale", batch=settlement.fence.id, gen=settlement.fence.gen)
            return
        if settlement.finished:
            self._waiters.finished(settlement.finished)
        if settlement.successors:
            self._added(settlement.successors)
