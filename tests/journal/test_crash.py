"""Power cuts at every moment: what was acknowledged is there, in order and unchanged.

A workload runs on a disk that logs. Then, after every single operation, every state that a power
cut may leave is opened again and checked.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from queue_service.journal import Journal, Record

from .memory_disk import Image, MemoryDisk, Op
from .support import drain, journals_on, record

SEGMENT_BYTES = 500


class Lost(AssertionError):
    """A power cut lost, changed or invented something."""


async def workload(rng: random.Random, disk: MemoryDisk, steps: int) -> dict[str, Record]:
    """Append, commit and sync at random; every answer is marked in the disk's log."""
    items: dict[str, Record] = {}

    async def append(journal: Journal, item: Record) -> None:
        await journal.append(item)
        disk.mark(f"acked {item.id}")

    async with journals_on(disk, segment_bytes=SEGMENT_BYTES) as journals:
        journal = journals.journal("acme")
        for _ in range(steps):
            choice = rng.random()
            if choice < 0.6:
                group = [
                    record(
                        len(items) + n,
                        rng.randbytes(rng.randint(0, 30)).replace(b"\n", b"") + b"\n",
                    )
                    for n in range(rng.randint(1, 3))
                ]
                items |= {item.id: item for item in group}
                await asyncio.gather(*(append(journal, item) for item in group))
            elif choice < 0.85:
                reservation = journal.reserve(rng.randint(1, 4), 1 << 20, 60, now=0)
                if reservation is not None:
                    for item in await journal.read(reservation):
                        disk.mark(f"stored {item.id}")
                    await journal.commit(reservation)
            else:
                await journal.sync_cursor()
    return items


async def check_state(
    files: dict[Path, bytes | None], items: dict[str, Record], acked: set[str]
) -> None:
    async with journals_on(MemoryDisk(files)) as journals:
        journal = journals.journal("acme")
        found = await drain(journal, max_records=50)
        await journal.append(record(999_999))
        fresh = await drain(journal)
    if fresh != [record(999_999)]:
        raise Lost("appending does not work again")
    if any(items.get(item.id) != item for item in found):
        raise Lost("something that was never written")
    order = [item.id for item in found]
    if order != sorted(set(order)):
        raise Lost("out of order or twice")
    if not acked <= set(order):
        raise Lost(f"acknowledged and gone: {sorted(acked - set(order))}")


async def sweep(seed: int, steps: int, disk: MemoryDisk) -> int:
    """Check every state after every operation of one workload; return how many differed."""
    items = await workload(random.Random(seed), disk, steps)
    image, acked = Image(), set[str]()
    seen: set[tuple[frozenset[tuple[Path, bytes | None]], frozenset[str]]] = set()
    for op in disk.log:
        if op.kind == "mark":
            what, name = str(op.path).split()
            # Once stored elsewhere a record may be read again, but need not be.
            (acked.add if what == "acked" else acked.discard)(name)
            continue
        image.apply(op)
        for files in image.after_power_cut():
            state = (frozenset(files.items()), frozenset(acked))
            if state not in seen:
                seen.add(state)
                await check_state(files, items, acked)
    return len(seen)


@pytest.mark.checklist("M29", "M32", "M55", "M60")
@pytest.mark.parametrize("seed", range(3))
async def test_no_power_cut_loses_what_was_acknowledged(seed: int) -> None:
    assert await sweep(seed, 16, MemoryDisk()) > 1500


class ForgetfulDisk(MemoryDisk):
    """A build that leaves out one kind of sync."""

    def __init__(self, forgotten: str) -> None:
        super().__init__()
        self._forgotten = forgotten

    def _do(self, op: Op) -> None:
        if op.kind != self._forgotten:
            super()._do(op)


@pytest.mark.parametrize("forgotten", ["sync", "syncdir"])
async def test_the_sweep_notices_a_build_without_syncs(forgotten: str) -> None:
    with pytest.raises(Lost, match="gone"):
        await sweep(1, 16, ForgetfulDisk(forgotten))
