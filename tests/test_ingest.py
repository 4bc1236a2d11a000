"""Ingest: turns over tenants, nothing committed before it is stored, nothing stored twice.

The journals are real ones on a disk in memory; the store and dispatch are played by the test.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from queue_service.batch import NewBatch
from queue_service.crew import Crew
from queue_service.errors import StoreUnavailable
from queue_service.gather import Grouping
from queue_service.ingest import Ingest
from queue_service.journal import Journals
from queue_service.options import Defaults
from queue_service.settings import Settings
from runners.base import Span
from tests.journal.memory_disk import MemoryDisk
from tests.journal.support import journals_on, record
from tests.waiting import eventually


def grouping(batch_bytes: int) -> Grouping:
    defaults = Defaults.of(Settings())
    return Grouping(batch_jobs=100, batch_bytes=batch_bytes, defaults=defaults)


class Store:
    """The part of a BatchStore that ingest uses; `away` makes it fail."""

    def __init__(self) -> None:
        self.batches: dict[str, NewBatch] = {}
        self.order: list[str] = []
        self.marks: dict[str, int] = {}
        self.away = False

    async def add(self, batches: Sequence[NewBatch]) -> None:
        if self.away:
            raise StoreUnavailable("away")
        for batch in batches:
            self.batches.setdefault(batch.id, batch)
            self.order.append(str(batch.jobtype.tenant))

    async def covered(self, tenant: str, posts: Sequence[str]) -> list[Span]:
        return [s for b in self.batches.values() for s in b.spans if s.post in set(posts)]

    async def mark(self, segment: str) -> int:
        return self.marks.get(segment, 0)

    async def move_marks(self, ends: Mapping[str, int]) -> None:
        if self.away:
            raise StoreUnavailable("away")
        self.marks |= ends

    @property
    def lines(self) -> list[tuple[str, int]]:
        return sorted(
            (span.post, line)
            for batch in self.batches.values()
            for span in batch.spans
            for line in range(span.first, span.first + span.count)
        )


class Taker:
    """Dispatch: takes nothing, unless it is given answers."""

    def __init__(self) -> None:
        self.heard: list[NewBatch] = []
        self.answers: list[asyncio.Future[bool]] = []

    async def take(self, new: NewBatch) -> Awaitable[bool] | None:
        return self.answers.pop(0) if self.answers else None

    def added(self, batches: Collection[NewBatch]) -> None:
        self.heard += batches


@asynccontextmanager
async def ingesting(
    journals: Journals, store: Store, taker: Taker | None = None, round_bytes: int = 1 << 20
) -> AsyncIterator[Ingest]:
    whole_store: Any = store
    ingest = Ingest(journals, whole_store, taker or Taker(), grouping(round_bytes), round_bytes)
    async with Crew() as crew:
        crew.start(ingest.run(crew))
        yield ingest


def expected(*numbers: int) -> list[tuple[str, int]]:
    return [(f"r{number:06d}", 0) for number in numbers]


@pytest.mark.checklist("M31", "M33")
async def test_what_is_in_the_journals_ends_up_in_the_store() -> None:
    store, taker = Store(), Taker()
    async with journals_on(MemoryDisk()) as journals, ingesting(journals, store, taker) as ingest:
        for number in range(20):
            await journals.journal("acme").append(record(number))
        assert await ingest.flush(5)
    assert store.lines == expected(*range(20))
    assert {batch.id for batch in taker.heard} == set(store.batches)
    assert len(store.batches) < 20  # neighbours were merged


async def test_tenants_take_turns() -> None:
    store = Store()
    async with journals_on(MemoryDisk()) as journals:
        for number in range(300):
            await journals.journal("hoarder").append(record(number))
        await journals.journal("modest").append(record(1000))
        async with ingesting(journals, store, round_bytes=2000) as ingest:
            assert await ingest.flush(5)
    assert len(store.order) > 20
    assert "modest" in store.order[:3]


async def test_nothing_is_committed_before_it_is_stored() -> None:
    store = Store()
    store.away = True
    disk = MemoryDisk()
    async with journals_on(disk) as journals, ingesting(journals, store) as ingest:
        await journals.journal("acme").append(record(1))
        assert not await ingest.stored("acme", 0.1)
        assert journals.unread_bytes > 0
        store.away = False
        assert await ingest.stored("acme", 5)
        assert journals.unread_bytes == 0
    assert store.lines == expected(1)


async def test_intake_goes_on_while_the_store_is_away() -> None:
    store = Store()
    store.away = True
    async with journals_on(MemoryDisk()) as journals, ingesting(journals, store) as ingest:
        for number in range(50):
            await journals.journal("acme").append(record(number))
        store.away = False
        assert await ingest.flush(10)
    assert store.lines == expected(*range(50))


@pytest.mark.checklist("M45")
@pytest.mark.parametrize("stored_before", [0, 3, 7, 10])
async def test_a_crash_between_storing_and_committing_stores_nothing_twice(
    stored_before: int,
) -> None:
    """The second life groups differently, as all records are there from its start."""
    disk, store = MemoryDisk(), Store()
    async with journals_on(disk) as journals:
        async with ingesting(journals, store) as ingest:
            for number in range(stored_before):
                await journals.journal("acme").append(record(number))
                assert await ingest.flush(5)
        for number in range(stored_before, 10):
            await journals.journal("acme").append(record(number))
        crashed = MemoryDisk(disk.files())  # before any read point was written down
    async with journals_on(crashed) as journals, ingesting(journals, store) as ingest:
        assert await ingest.flush(5)
    assert store.lines == expected(*range(10))


async def test_an_old_journal_is_not_stored_again_after_its_batches_were_purged() -> None:
    disk, store = MemoryDisk(), Store()
    async with journals_on(disk) as journals:
        async with ingesting(journals, store) as ingest:
            for number in range(5):
                await journals.journal("acme").append(record(number))
            assert await ingest.flush(5)
            assert await ingest.write_marks() == 1
        old = MemoryDisk(disk.files())
    store.batches.clear()
    async with journals_on(old) as journals, ingesting(journals, store) as ingest:
        await eventually(lambda: journals.unread_bytes == 0)
    assert store.lines == []


async def test_marks_that_could_not_be_written_are_written_later() -> None:
    store = Store()
    async with journals_on(MemoryDisk()) as journals, ingesting(journals, store) as ingest:
        await journals.journal("acme").append(record(1))
        assert await ingest.flush(5)
        store.away = True
        with pytest.raises(StoreUnavailable):
            await ingest.write_marks()
        store.away = False
        assert await ingest.write_marks() == 1
        assert await ingest.write_marks() == 0
    assert list(store.marks.values()) != [0]


async def test_a_batch_that_dispatch_took_is_committed_when_it_is_stored() -> None:
    store, taker = Store(), Taker()
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    taker.answers.append(answer)
    async with journals_on(MemoryDisk()) as journals, ingesting(journals, store, taker) as ingest:
        await journals.journal("acme").append(record(1))
        assert not await ingest.stored("acme", 0.1)
        answer.set_result(True)
        assert await ingest.stored("acme", 5)
    assert store.lines == []  # the test's dispatch did not really store it


async def test_a_batch_that_dispatch_gave_up_is_stored_by_ingest() -> None:
    store, taker = Store(), Taker()
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    answer.set_result(False)
    taker.answers.append(answer)
    async with journals_on(MemoryDisk()) as journals, ingesting(journals, store, taker) as ingest:
        await journals.journal("acme").append(record(1))
        assert await ingest.stored("acme", 5)
    assert store.lines == expected(1)


async def test_a_journal_that_cannot_be_read_holds_nobody_else_up() -> None:
    disk, store = MemoryDisk(), Store()

    def fail(kind: str, path: Path) -> None:
        if kind == "read" and path.parent.name == "spoilt":
            raise OSError(errno.EIO, "injected")

    async with journals_on(disk) as journals, ingesting(journals, store) as ingest:
        disk.before = fail
        await journals.journal("spoilt").append(record(1))
        for number in range(2, 5):
            await journals.journal("acme").append(record(number))
            assert await ingest.stored("acme", 5)
        disk.before = lambda kind, path: None
        assert await ingest.flush(5)
    assert store.lines == expected(1, 2, 3, 4)
