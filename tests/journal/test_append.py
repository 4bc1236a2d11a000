"""Appending: durable before the answer, in groups, in order, and honest when the disk fails."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from queue_service.errors import JournalFull, JournalUnavailable
from queue_service.journal.segment import SegmentName
from tests.waiting import eventually

from .memory_disk import MemoryDisk, Torn
from .support import ROOT, drain, journals_on, record


def is_log(path: Path) -> bool:
    return path.suffix == ".log"


class Faults:
    """Fails the chosen operations on segments with `code`, as long as `times` lasts."""

    def __init__(self, kind: str, code: int, times: int = 1) -> None:
        self.kind, self.code, self.times = kind, code, times

    def __call__(self, kind: str, path: Path) -> None:
        if kind == self.kind and (is_log(path) or kind == "syncdir") and self.times:
            self.times -= 1
            raise OSError(self.code, "injected")


@pytest.mark.checklist("M29", "M51")
async def test_an_append_returns_only_after_its_bytes_were_synced() -> None:
    disk = MemoryDisk()
    async with journals_on(disk) as journals:
        await journals.journal("acme").append(record(1))
        kinds = [op.kind for op in disk.log if op.kind != "mark"]
        assert kinds[-2:] == ["write", "sync"]
    # Root and tenant directory entries and the file's own are durable before the first write.
    before_write = [(op.kind, op.path) for op in disk.log[: kinds.index("write")]]
    assert ("syncdir", ROOT.parent) in before_write
    assert before_write[-1] == ("syncdir", ROOT / "acme")


@pytest.mark.checklist("M29")
async def test_concurrent_appends_share_a_sync() -> None:
    disk = MemoryDisk()
    async with journals_on(disk, inline=False) as journals:
        journal = journals.journal("acme")
        await asyncio.gather(*(journal.append(record(n)) for n in range(500)))
        assert disk.count("sync") <= 2
        assert await drain(journal, 1000) == [record(n) for n in range(500)]


async def test_what_arrives_during_a_flush_goes_into_the_next_one() -> None:
    disk, gate, inside = MemoryDisk(), threading.Event(), threading.Event()

    def block(kind: str, path: Path) -> None:
        if kind == "sync" and is_log(path):
            inside.set()
            assert gate.wait(10)

    async with journals_on(disk, inline=False) as journals:
        journal = journals.journal("acme")
        disk.before = block
        first = asyncio.create_task(journal.append(record(0)))
        await eventually(inside.is_set)
        rest = [asyncio.create_task(journal.append(record(n))) for n in range(1, 50)]
        await asyncio.sleep(0)
        assert not first.done()
        assert journals.readable() == []
        gate.set()
        await asyncio.gather(first, *rest)
        assert disk.count("sync") == 2


@pytest.mark.checklist("M52")
async def test_sync_waits_for_appends_begun_and_not_for_later_ones() -> None:
    disk, gates = MemoryDisk(), [threading.Event(), threading.Event()]
    waiting = iter(gates)

    def block(kind: str, path: Path) -> None:
        if kind == "sync" and is_log(path):
            assert next(waiting).wait(10)

    async with journals_on(disk, inline=False) as journals:
        journal = journals.journal("acme")
        await journal.sync()
        disk.before = block
        early = asyncio.create_task(journal.append(record(0)))
        await eventually(lambda: disk.count("write") == 1)
        sync = asyncio.create_task(journal.sync())
        await asyncio.sleep(0)
        late = asyncio.create_task(journal.append(record(1)))
        await asyncio.sleep(0)
        assert not sync.done()
        gates[0].set()
        await sync
        assert early.done() or (await early)
        assert not late.done()
        gates[1].set()
        await late


async def test_a_cancelled_caller_does_not_hold_up_the_others() -> None:
    disk = MemoryDisk()
    async with journals_on(disk, inline=False) as journals:
        journal = journals.journal("acme")
        tasks = [asyncio.create_task(journal.append(record(n))) for n in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        assert tasks[1].cancelled()
        assert [item.id for item in await drain(journal)][0::2] == ["r000000", "r000002"]


async def test_bytes_waiting_for_the_disk_are_bounded() -> None:
    disk, gate = MemoryDisk(), threading.Event()

    def block(kind: str, path: Path) -> None:
        if kind == "write":
            assert gate.wait(10)

    disk.before = block
    async with journals_on(disk, inline=False, queue_bytes=4096) as journals:
        journal = journals.journal("acme")
        tasks = [
            asyncio.create_task(journal.append(record(n, b"x" * 1000 + b"\n"))) for n in range(6)
        ]
        await asyncio.sleep(0)
        gate.set()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(end) for end in ends[3:]] == [JournalUnavailable] * 3
        assert [item.id for item in await drain(journal)] == ["r000000", "r000001", "r000002"]
        await journal.append(record(7))


@pytest.mark.checklist("M32")
async def test_a_full_segment_is_followed_by_a_new_one_and_order_is_kept() -> None:
    disk = MemoryDisk()
    async with journals_on(disk, segment_bytes=400) as journals:
        journal = journals.journal("acme")
        for n in range(12):
            await journal.append(record(0, b"%d\n" % n))  # one millisecond for all names
        names = [path.name for path in disk.files() if is_log(path)]
        assert len(names) == 3
        assert sorted(names) == names
        assert [item.body for item in await drain(journal)] == [b"%d\n" % n for n in range(12)]


async def test_segment_names_sort_by_creation_when_the_clock_goes_back() -> None:
    disk = MemoryDisk()
    for life in range(3):
        async with journals_on(disk) as journals:
            await journals.journal("acme").append(record(10 - life))
    async with journals_on(disk) as journals:
        found = await drain(journals.journal("acme"))
    assert [item.id for item in found] == ["r000010", "r000009", "r000008"]


async def test_a_segment_of_an_earlier_life_is_never_appended_to() -> None:
    disk = MemoryDisk()
    async with journals_on(disk) as journals:
        await journals.journal("acme").append(record(1))
    before = {path: data for path, data in disk.files().items() if is_log(path)}
    async with journals_on(disk) as journals:
        await journals.journal("acme").append(record(2))
    assert sum(map(is_log, disk.files())) == len(before) + 1
    assert all(disk.files()[path] == data for path, data in before.items())


@pytest.mark.parametrize(
    ("kind", "code", "expected"),
    [
        ("sync", errno.EIO, JournalUnavailable),
        ("write", errno.ENOSPC, JournalFull),
        ("sync", errno.EDQUOT, JournalFull),
        ("create", errno.ENOSPC, JournalFull),
        ("syncdir", errno.EIO, JournalUnavailable),
    ],
)
async def test_a_failed_group_is_refused_whole_and_the_next_append_works(
    kind: str, code: int, expected: type[Exception]
) -> None:
    disk = MemoryDisk()
    async with journals_on(disk) as journals:
        journal = journals.journal("acme")
        if kind not in ("create", "syncdir"):
            await journal.append(record(0))
        disk.before = Faults(kind, code)
        ends = await asyncio.gather(
            *(journal.append(record(n)) for n in range(1, 4)), return_exceptions=True
        )
        assert {type(end) for end in ends} == {expected}
        await journal.append(record(9))
        assert journal.healthy
        found = [item.id for item in await drain(journal)]
    assert found == (["r000009"] if kind in ("create", "syncdir") else ["r000000", "r000009"])


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_a_descriptor_that_failed_is_never_synced_again(kind: str) -> None:
    disk = MemoryDisk()
    async with journals_on(disk) as journals:
        journal = journals.journal("acme")
        await journal.append(record(0))
        disk.before = Faults(kind, errno.EIO)
        with pytest.raises(JournalUnavailable):
            await journal.append(record(1))
        for n in range(2, 5):
            await journal.append(record(n))
    failed = next(i for i, op in enumerate(disk.log) if op.kind == f"failed {kind}")
    bad = disk.log[failed]
    assert not [
        op
        for op in disk.log[failed + 1 :]
        if op.kind in ("sync", "write") and (op.fd == bad.fd or op.path == bad.path)
    ]


@pytest.mark.parametrize("written", [0, 1, 40, 150])
async def test_refused_records_do_not_turn_up_after_a_restart(written: int) -> None:
    disk = MemoryDisk()
    journals = journals_on(disk)
    await journals.open()
    journal = journals.journal("acme")
    await journal.append(record(0))

    def tear(kind: str, path: Path) -> None:
        if kind == "write":
            raise Torn(written, errno.ENOSPC)

    disk.before = tear
    with pytest.raises(JournalFull):
        await journal.append(record(1))
    disk.before = lambda kind, path: None
    await journal.append(record(2))
    async with journals_on(MemoryDisk(disk.files())) as again:
        found = await drain(again.journal("acme"))
    assert [item.id for item in found] == ["r000000", "r000002"]
    await journals.close()


async def test_failing_first_appends_leave_no_files_behind() -> None:
    disk = MemoryDisk()
    async with journals_on(disk) as journals:
        disk.before = Faults("sync", errno.EIO)
        with pytest.raises(JournalUnavailable):
            await journals.journal("acme").append(record(0))
        assert not [path for path in disk.files() if is_log(path)]


async def test_repeated_failures_refuse_at_once_and_one_append_probes_later() -> None:
    disk, now = MemoryDisk(), [1000.0]
    async with journals_on(disk, clock=lambda: now[0], inline=False) as journals:
        journal = journals.journal("acme")
        disk.before = Faults("sync", errno.EIO, times=3)
        for n in range(2):
            with pytest.raises(JournalUnavailable):
                await journal.append(record(n))
        assert not journal.healthy
        assert not journals.healthy
        tried = len(disk.log)
        with pytest.raises(JournalUnavailable, match="repeatedly"):
            await journal.append(record(2))
        assert len(disk.log) == tried

        now[0] += 6  # the probe fails too, so the refusal begins again
        with pytest.raises(JournalUnavailable, match="written"):
            await journal.append(record(3))
        assert not journal.healthy

        now[0] += 6
        ends = await asyncio.gather(
            *(journal.append(record(n)) for n in range(4, 8)), return_exceptions=True
        )
        assert [isinstance(end, JournalUnavailable) for end in ends] == [False, True, True, True]
        assert journal.healthy
        assert journals.healthy
        assert [item.id for item in await drain(journal)] == ["r000004"]


async def test_failures_far_apart_do_not_stop_intake() -> None:
    disk, now = MemoryDisk(), [1000.0]
    async with journals_on(disk, clock=lambda: now[0]) as journals:
        journal = journals.journal("acme")
        for n in range(3):
            disk.before = Faults("sync", errno.EIO)
            with pytest.raises(JournalUnavailable):
                await journal.append(record(n))
            assert journal.healthy
            now[0] += 61


async def test_appends_after_close_are_refused() -> None:
    journals = journals_on(MemoryDisk())
    await journals.open()
    journal = journals.journal("acme")
    await journals.close()
    with pytest.raises(JournalUnavailable, match="closing"):
        await journal.append(record(1))


def test_names_parse_back_and_strangers_do_not() -> None:
    name = SegmentName(1763452800123, "0f" * 16)
    assert SegmentName.parse(str(name)) == name
    assert SegmentName.parse(f"{name}.bad-0") is None
    assert SegmentName.parse("cursor") is None
