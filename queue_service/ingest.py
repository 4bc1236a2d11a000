"""Ingest: from the journals into the store, taking turns over tenants.

Each round reads records from the front of some journals, makes batch documents of them (large posts
are cut at line ends, small ones of one jobtype and equal options are merged) and stores them with
the journals' marks in one transaction. The marks tell what is stored, so a record that is read
twice is stored once, however it is grouped. While the store is away it waits; intake does not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from handlers.names import JobType
from queue_service import block, clock
from queue_service.batch import NewBatch
from queue_service.errors import StoreUnavailable
from queue_service.journal.claims import Reservation
from queue_service.journal.journal import Journal
from queue_service.journal.journals import Journals
from queue_service.journal.record import Record
from queue_service.options import Defaults, understand
from queue_service.store.base import BatchStore, Mark, MarkMoved
from runners.base import Span

log = structlog.get_logger(__name__)

_TENANTS_PER_ROUND = 64
_RECORDS_PER_ROUND = 5000
_BACKOFF_MAX_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings:
    """How large a batch and a round may be, and what holds where a record asks for nothing."""

    batch_jobs: int
    batch_bytes: int
    round_bytes: int
    reserve_timeout_s: float
    defaults: Defaults


@dataclass(frozen=True, slots=True)
class _Taken:
    """A reserved piece of one tenant's journal."""

    tenant: str
    journal: Journal
    reservation: Reservation


class Ingest:
    """Moves what is durable in the journals into the store; `added` hears what was stored."""

    def __init__(
        self,
        journals: Journals,
        store: BatchStore,
        settings: IngestSettings,
        added: Callable[[Collection[NewBatch]], None],
    ) -> None:
        self._journals = journals
        self._store = store
        self._settings = settings
        self._added = added
        self._marks: dict[str, int] = {}
        self._last_tenant = ""
        self._moved = asyncio.Condition()
        self.store_answers = True

    async def run(self) -> None:
        """Ingest until cancelled; a store that is away only makes it wait longer."""
        failures = 0
        while True:
            await self._journals.wait_readable(timeout_s=1.0)
            try:
                await self._round()
            except StoreUnavailable as error:
                failures += 1
                if self.store_answers:
                    log.warning("ingest.store_away", reason=str(error))
                self.store_answers = False
                ceiling = min(_BACKOFF_MAX_S, 0.05 * 2 ** min(failures, 10))
                await asyncio.sleep(random.uniform(ceiling / 2, ceiling))  # noqa: S311
                continue
            if not self.store_answers:
                log.info("ingest.store_back", failures=failures)
            self.store_answers, failures = True, 0

    async def stored(self, tenant: str, timeout_s: float) -> bool:
        """Wait until all that is durable now in a tenant's journal is in the store as well.

        With this a tenant can read what it has just written; False when time ran out.
        """
        journal = self._journals.journal(tenant)
        target = journal.durable_end
        try:
            async with asyncio.timeout(timeout_s), self._moved:
                await self._moved.wait_for(lambda: journal.is_committed(target))
        except TimeoutError:
            return False
        return True

    async def flush(self, timeout_s: float) -> bool:
        """Wait until nothing unread is left anywhere, at most so long."""
        deadline = clock.monotonic() + timeout_s
        while readable := self._journals.readable():
            if not await self.stored(readable[0], max(0.0, deadline - clock.monotonic())):
                return False
        return True

    async def _round(self) -> None:
        """One transaction's worth: reserve, read, store, commit."""
        taken = await self._reserve()
        try:
            read = await asyncio.gather(*(t.journal.read(t.reservation) for t in taken))
            batches = [
                batch
                for piece, records in zip(taken, read, strict=True)
                for batch in gather(piece.tenant, records, self._settings)
            ]
            marks = [self._mark(piece.reservation) for piece in taken]
            await self._store.add(batches, marks)
        except BaseException as error:
            for piece in taken:
                piece.journal.cancel(piece.reservation)
            if isinstance(error, MarkMoved):
                self._marks.clear()  # all are read again; the next round skips what is stored
                return
            raise
        for piece, mark in zip(taken, marks, strict=True):
            self._marks[mark.segment] = mark.end
            await piece.journal.commit(piece.reservation)
        async with self._moved:
            self._moved.notify_all()
        if batches:
            self._added(batches)

    def _mark(self, reservation: Reservation) -> Mark:
        segment = reservation.segment_uid
        return Mark(segment=segment, start=self._marks[segment], end=reservation.end)

    async def _reserve(self) -> list[_Taken]:
        """Reserve the next piece of every tenant whose turn it is, in equal shares."""
        turn = list(self._turn())
        share = max(self._settings.round_bytes // max(len(turn), 1), self._settings.batch_bytes)
        records = max(_RECORDS_PER_ROUND // max(len(turn), 1), 100)
        taken = []
        for tenant in turn:
            journal = self._journals.journal(tenant)
            reservation = await self._reserve_new(journal, records, share)
            if reservation is not None:
                taken.append(_Taken(tenant, journal, reservation))
        return taken

    def _turn(self) -> Iterator[str]:
        """The tenants of this round, going on behind the last one served."""
        readable = sorted(self._journals.readable(clock.monotonic()))
        later = [tenant for tenant in readable if tenant > self._last_tenant]
        chosen = (later + readable[: len(readable) - len(later)])[:_TENANTS_PER_ROUND]
        if chosen:
            self._last_tenant = chosen[-1]
        yield from chosen

    async def _reserve_new(
        self, journal: Journal, max_records: int, max_bytes: int
    ) -> Reservation | None:
        """Reserve behind what the store has of the segment; its mark is asked for once."""
        while True:
            reservation = journal.reserve(
                max_records, max_bytes, self._settings.reserve_timeout_s, clock.monotonic()
            )
            if reservation is None or reservation.segment_uid in self._marks:
                return reservation
            segment = reservation.segment_uid
            journal.cancel(reservation)
            self._marks[segment] = await self._store.mark(segment)
            if self._marks[segment]:
                journal.skip_to(segment, self._marks[segment])


@dataclass(slots=True)
class _Group:
    """Small posts of one jobtype and equal options, on their way to become one batch."""

    records: list[Record] = field(default_factory=list)
    jobs: int = 0
    size: int = 0

    def fits(self, record: Record, settings: IngestSettings) -> bool:
        return (
            self.jobs + record.jobs <= settings.batch_jobs
            and self.size + len(record.body) <= settings.batch_bytes
        )

    def add(self, record: Record) -> None:
        self.records.append(record)
        self.jobs += record.jobs
        self.size += len(record.body)


def gather(tenant: str, records: Iterable[Record], settings: IngestSettings) -> Iterator[NewBatch]:
    """Make batches of records: cut the large, merge the small, keep the order of each type."""
    groups: dict[tuple[str, str], _Group] = {}
    for record in records:
        key = (record.type, record.opts)
        group = groups.get(key)
        if group and not group.fits(record, settings):
            yield _merged(tenant, groups.pop(key), settings)
            group = None
        if record.jobs > settings.batch_jobs or len(record.body) > settings.batch_bytes:
            yield from _cut(tenant, record, settings)
            continue
        if group is None:
            group = groups[key] = _Group()
        group.add(record)
    for group in groups.values():
        yield _merged(tenant, group, settings)


def _merged(tenant: str, group: _Group, settings: IngestSettings) -> NewBatch:
    spans = tuple(Span(post=record.id, first=0, count=record.jobs) for record in group.records)
    data = b"".join([record.body for record in group.records])
    return _batch(tenant, group.records[0], spans, group.jobs, data, settings)


def _cut(tenant: str, record: Record, settings: IngestSettings) -> Iterator[NewBatch]:
    first = 0
    for data, count in block.cut(record.body, settings.batch_jobs, settings.batch_bytes):
        spans = (Span(post=record.id, first=first, count=count),)
        yield _batch(tenant, record, spans, count, data, settings)
        first += count


def _batch(
    tenant: str,
    record: Record,
    spans: tuple[Span, ...],
    count: int,
    data: bytes,
    settings: IngestSettings,
) -> NewBatch:
    options, due = understand(record.opts, settings.defaults)
    created: datetime = record.date
    return NewBatch(
        jobtype=JobType(tenant, record.type),
        spans=spans,
        count=count,
        data=data,
        dt=due or created,
        attempt=1,
        options=options,
        create_dt=created,
    )
