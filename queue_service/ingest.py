"""Ingest: from the journals into the store, taking turns over tenants.

Each round reads records from the front of some journals and makes batches of them (`gather`).
Dispatch may take a batch and run it at once; the others are stored as waiting. A journal's read
point moves when all of a round is in the store, in whatever state. While the store is away rounds
wait, and intake goes on.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog

from queue_service import clock
from queue_service.batch import NewBatch
from queue_service.crew import Crew
from queue_service.errors import JournalUnavailable
from queue_service.gather import Grouping, gather, whole, without
from queue_service.insist import insist
from queue_service.journal.claims import Reservation
from queue_service.journal.journal import Journal
from queue_service.journal.journals import Journals
from queue_service.store.base import BatchStore

log = structlog.get_logger(__name__)

_TENANTS_PER_ROUND = 64
_RECORDS_PER_ROUND = 5000
_ROUNDS_MAX = 8
# While posts keep coming, a round waits for company, unless much is there already or somebody waits
# for a result: many small posts that arrive together become one batch. A post that comes alone is
# not held up.
_PACE_STEPS = 20
_PACE_STEP_S = 0.002
_MUCH_BYTES = 64 << 10
# A journal that could not be read is left alone for so long, and holds nobody else up.
_UNREADABLE_S = 1.0
_NOTHING_READ_S = 0.05


class Taker(Protocol):
    """Who hears of new batches: dispatch."""

    async def take(self, new: NewBatch) -> Awaitable[bool] | None:
        """Run a batch that is not stored yet, if there is room and nobody goes before it.

        None: not taken. Otherwise the answer comes when the batch is in the store, in whatever
        state it has reached by then (True), or when it was given up and is not (False).
        """

    def added(self, batches: Collection[NewBatch]) -> None:
        """These batches were stored."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """A reserved piece of one tenant's journal."""

    journal: Journal
    reservation: Reservation


class Ingest:
    """Moves what is durable in the journals into the store."""

    def __init__(
        self,
        journals: Journals,
        store: BatchStore,
        taker: Taker,
        grouping: Grouping,
        round_bytes: int,
        is_urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        self._journals = journals
        self._store = store
        self._taker = taker
        self._grouping = grouping
        self._round_bytes = round_bytes
        self._is_urgent = is_urgent
        self._last_tenant = ""
        self._rounds = 0
        self._busy = False
        self._reserved_bytes = 0
        self._unreadable: dict[str, float] = {}
        self._moved = asyncio.Condition()
        # Segments of an earlier life whose mark is known; ends not noted in the store yet.
        self._asked: set[str] = set()
        self._ends: dict[str, tuple[Journal, int]] = {}

    async def run(self, crew: Crew) -> None:
        """Ingest until cancelled; rounds that overlap join the crew."""
        while True:
            await self._worth_a_round()
            taken, batches = await self._read_round()
            if not taken:
                await asyncio.sleep(_NOTHING_READ_S)
                continue
            self._rounds += 1
            self._busy = self._rounds > 1 or sum(len(b.spans) for b in batches) > 1
            self._reserved_bytes += _size(taken)
            crew.start(self._finish(taken, batches))

    # What the API and the daemon ask.

    async def stored(self, tenant: str, timeout_s: float) -> bool:
        """Wait until all that is durable now in a tenant's journal is in the store as well.

        With this a tenant can read what it has just written; False when time ran out.
        """
        journal = self._journals.journal(tenant)
        target = journal.durable_end
        return await self._until(lambda: journal.is_committed(target), timeout_s)

    async def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is left in any journal, at most so long."""
        return await self._until(lambda: self._journals.unread_bytes == 0, timeout_s)

    async def write_marks(self) -> int:
        """Note in the store how far segments have been stored."""
        ends, self._ends = self._ends, {}
        points = {
            segment: end if (point := journal.read_point(segment)) is None else point
            for segment, (journal, end) in ends.items()
        }
        try:
            await self._store.move_marks(points)
        except BaseException:
            self._ends = ends | self._ends
            raise
        return len(points)

    # A round.

    async def _worth_a_round(self) -> None:
        while not await self._journals.wait_readable(timeout_s=1.0):
            pass
        await self._until(lambda: self._rounds < _ROUNDS_MAX, math.inf)
        for _ in range(_PACE_STEPS if self._busy else 0):
            unread_bytes = self._journals.unread_bytes - self._reserved_bytes
            if unread_bytes >= _MUCH_BYTES or self._is_urgent():
                return
            await asyncio.sleep(_PACE_STEP_S)

    async def _read_round(self) -> tuple[list[_Taken], list[NewBatch]]:
        """Reserve and read the next records of every tenant whose turn it is, in equal shares."""
        turn = list(self._turn())
        share = max(self._round_bytes // max(len(turn), 1), self._grouping.batch_bytes)
        records = max(_RECORDS_PER_ROUND // max(len(turn), 1), 100)
        taken: list[_Taken] = []
        try:
            for tenant in turn:
                journal = self._journals.journal(tenant)
                reservation = await self._reserve(journal, records, share)
                if reservation is not None:
                    taken.append(_Taken(journal, reservation))
            read = await asyncio.gather(*(self._batches(piece) for piece in taken))
        except BaseException:
            for piece in taken:
                piece.journal.cancel(piece.reservation)
            raise
        batches = [batch for found in read for batch in found or ()]
        return [
            piece for piece, found in zip(taken, read, strict=True) if found is not None
        ], batches

    def _turn(self) -> Iterator[str]:
        """The tenants of this round, going on behind the last one served."""
        now = clock.monotonic()
        self._unreadable = {t: until for t, until in self._unreadable.items() if until > now}
        readable = sorted(set(self._journals.readable()) - self._unreadable.keys())
        later = [tenant for tenant in readable if tenant > self._last_tenant]
        chosen = (later + readable[: len(readable) - len(later)])[:_TENANTS_PER_ROUND]
        if chosen:
            self._last_tenant = chosen[-1]
        yield from chosen

    async def _reserve(self, journal: Journal, records: int, size: int) -> Reservation | None:
        """Reserve behind what the store is known to have of a segment of an earlier life."""
        while True:
            # Never lapses: until it is stored or cancelled, nobody else may read the same records.
            found = journal.reserve(records, size, math.inf, clock.monotonic())
            if found is None or not found.inherited or found.segment_uid in self._asked:
                return found
            journal.cancel(found)
            stored = await insist("mark", partial(self._store.mark, found.segment_uid))
            self._asked.add(found.segment_uid)
            journal.skip_to(found.segment_uid, stored)

    async def _batches(self, piece: _Taken) -> list[NewBatch] | None:
        """The batches of a piece; None when the disk does not let it be read."""
        tenant = piece.journal.tenant
        try:
            records = await piece.journal.read(piece.reservation)
        except JournalUnavailable as error:
            log.error("ingest.journal_unreadable", tenant=tenant, reason=str(error))
            piece.journal.cancel(piece.reservation)
            self._unreadable[tenant] = clock.monotonic() + _UNREADABLE_S
            return None
        portions = whole(records)
        if piece.reservation.inherited and records:
            posts = [record.id for record in records]
            covered = await insist("covered", partial(self._store.covered, tenant, posts))
            portions = without(records, covered)
        return list(gather(tenant, portions, self._grouping))

    async def _finish(self, taken: list[_Taken], batches: list[NewBatch]) -> None:
        """See a round into the store, then move the read points."""
        under_way: list[tuple[NewBatch, Awaitable[bool]]] = []
        waiting: list[NewBatch] = []
        for batch in batches:
            stored = await self._taker.take(batch)
            if stored is None:
                waiting.append(batch)
            else:
                under_way.append((batch, stored))
        await self._add(waiting)
        await self._add([batch for batch, stored in under_way if not await stored])
        for piece in taken:
            segment = piece.reservation.segment_uid
            await piece.journal.commit(piece.reservation)
            _, end = self._ends.get(segment, (None, 0))
            self._ends[segment] = (piece.journal, max(end, piece.reservation.end))
        self._reserved_bytes -= _size(taken)
        async with self._moved:
            self._rounds -= 1
            self._moved.notify_all()

    async def _add(self, waiting: list[NewBatch]) -> None:
        if waiting:
            await insist("add", partial(self._store.add, waiting))
            self._taker.added(waiting)

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for something that only the end of a round can bring about."""
        if condition():
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(None if timeout_s == math.inf else timeout_s), self._moved:
                return await self._moved.wait_for(condition)
        return False


def _size(taken: list[_Taken]) -> int:
    return sum(piece.reservation.end - piece.reservation.start for piece in taken)
