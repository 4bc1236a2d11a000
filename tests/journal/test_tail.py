"""The tail: what was just written is read from memory, and nothing changes but the way."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from queue_service.journal import Journal, Record

from .memory_disk import MemoryDisk
from .support import drain, journals_on, record


def watch_reads(disk: MemoryDisk) -> list[Path]:
    reads: list[Path] = []
    disk.before = lambda kind, path: reads.append(path) if kind == "read" else None
    return reads


async def append(journal: Journal, numbers: range) -> list[Record]:
    records = [record(number) for number in numbers]
    for one in records:
        await journal.append(one)
    return records


async def test_what_was_just_written_is_read_without_the_disk() -> None:
    disk = MemoryDisk()
    async with journals_on(disk, tail_bytes=1 << 20) as journals:
        journal = journals.journal("acme")
        written = await append(journal, range(10))
        reads = watch_reads(disk)
        assert await drain(journal) == written
        assert reads == []


async def test_limits_are_kept_as_on_disk() -> None:
    async with journals_on(MemoryDisk(), tail_bytes=1 << 20) as journals:
        journal = journals.journal("acme")
        await append(journal, range(4))
        few = journal.reserve(2, 1 << 20, 60, now=0)
        assert few is not None
        assert len(await journal.read(few)) == 2
        small = journal.reserve(9, 1, 60, now=0)
        assert small is not None
        assert len(await journal.read(small)) == 1  # however large it is


async def test_what_does_not_fit_the_budget_is_read_from_disk_in_order() -> None:
    disk = MemoryDisk()
    size = 1 << 10
    async with journals_on(disk, tail_bytes=size) as journals:
        journal = journals.journal("acme")
        written = await append(journal, range(40))
        reads = watch_reads(disk)
        assert await drain(journal) == written
        assert reads
        reads.clear()
        # Committing has given the budget back.
        later = await append(journal, range(40, 43))
        assert await drain(journal) == later
        assert reads == []


async def test_one_tenant_cannot_use_up_memory_for_ever() -> None:
    async with journals_on(MemoryDisk(), tail_bytes=1 << 12) as journals:
        hoarder, other = journals.journal("acme"), journals.journal("other")
        await append(hoarder, range(500))
        written = await append(other, range(5))
        assert await drain(other) == written
        assert len(await drain(hoarder)) == 500


@pytest.mark.parametrize("seed", range(20))
async def test_memory_and_disk_give_the_same(seed: int) -> None:
    """Random appends, reservations, cancels and commits: nothing missing, nothing twice."""
    rng = random.Random(seed)
    tail_bytes = rng.choice([0, 600, 4000, 1 << 20])
    async with journals_on(MemoryDisk(), tail_bytes=tail_bytes, segment_bytes=1500) as journals:
        journal = journals.journal("acme")
        written: list[Record] = []
        seen: list[Record] = []
        for _ in range(60):
            action = rng.random()
            if action < 0.5:
                written += await append(journal, range(len(written), len(written) + 1))
                continue
            taken = journal.reserve(rng.randint(1, 4), rng.choice([1, 500, 1 << 20]), 60, now=0)
            if taken is None:
                continue
            records = await journal.read(taken)
            if action < 0.7:
                journal.cancel(taken)
            else:
                seen += records
                assert await journal.commit(taken)
        seen += await drain(journal)
        assert seen == written
