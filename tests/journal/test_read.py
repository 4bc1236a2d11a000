"""Reading from the front: reservations, commits in any order, the cursor, what is unlinked when."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from queue_service.errors import JournalUnavailable
from queue_service.journal import Journal, Record, ReservationLapsed
from tests.waiting import eventually

from .memory_disk import MemoryDisk
from .support import ROOT, Alarms, drain, journals_on, record


async def fill(journal: Journal, count: int, first: int = 0) -> None:
    for n in range(first, first + count):
        await journal.append(record(n))


def numbers(items: list[Record]) -> list[int]:
    return [int(item.id[1:]) for item in items]


def logs(disk: MemoryDisk) -> list[Path]:
    return [path for path in disk.files() if path.suffix == ".log"]


@pytest.mark.checklist("M31", "M53", "M54")
async def test_a_reservation_holds_at_most_n_records_and_others_never_see_them() -> None:
    async with journals_on(MemoryDisk()) as journals:
        journal = journals.journal("acme")
        await fill(journal, 7)
        taken = []
        for _ in range(3):
            reservation = journal.reserve(3, 1 << 20, 60, now=0)
            assert reservation is not None
            taken.append(numbers(await journal.read(reservation)))
        assert taken == [[0, 1, 2], [3, 4, 5], [6]]
        assert journal.reserve(3, 1 << 20, 60, now=1) is None


@pytest.mark.checklist("M54")
async def test_reading_a_reservation_twice_gives_the_same() -> None:
    async with journals_on(MemoryDisk()) as journals:
        journal = journals.journal("acme")
        await fill(journal, 3)
        reservation = journal.reserve(2, 1 << 20, 60, now=0)
        assert reservation is not None
        first = await journal.read(reservation)
        end = reservation.end
        await fill(journal, 3, first=3)
        assert await journal.read(reservation) == first
        assert (reservation.start, reservation.end) == (0, end)


async def test_nobody_can_reserve_behind_an_end_that_is_not_known_yet() -> None:
    async with journals_on(MemoryDisk()) as journals:
        journal = journals.journal("acme")
        await fill(journal, 3)
        first = journal.reserve(1, 1 << 20, 60, now=0)
        assert first is not None
        assert journal.reserve(1, 1 << 20, 60, now=0) is None
        assert journals.readable() == []
        await journal.read(first)
        assert journals.readable() == ["acme"]
        second = journal.reserve(1, 1 << 20, 60, now=0)
        assert second is not None
        assert second.start == first.end


@pytest.mark.parametrize("limit", [1, 100, 210, 500])
async def test_a_byte_limit_is_kept_but_one_record_always_fits(limit: int) -> None:
    async with journals_on(MemoryDisk()) as journals:
        journal = journals.journal("acme")
        await fill(journal, 6)
        reservation = journal.reserve(10, limit, 60, now=0)
        assert reservation is not None
        found = await journal.read(reservation)
        assert len(found) == 1 or reservation.end - reservation.start <= limit
        assert (len(found) > 1) == (limit == 500)
        await journal.commit(reservation)
        assert len(found) + len(await drain(journal)) == 6


async def test_a_record_larger_than_any_limit_is_read_whole() -> None:
    async with journals_on(MemoryDisk()) as journals:
        journal = journals.journal("acme")
        big = record(0, b"x" * 300_000 + b"\n")
        await journal.append(big)
        await journal.append(record(1))
        reservation = journal.reserve(10, 1000, 60, now=0)
        assert reservation is not None
        assert await journal.read(reservation) == [big]


@pytest.mark.checklist("M55")
async def test_a_commit_survives_a_restart() -> None:
    disk = MemoryDisk()
    async with journals_on(disk) as journals:
        journal = journals.journal("acme")
        await fill(journal, 5)
        reservation = journal.reserve(2, 1 << 20, 60, now=0)
        assert reservation is not None
        await journal.read(reservation)
        assert await journal.commit(reservation)
    async with journals_on(disk) as journals:
        assert journals.readable() == ["acme"]
        assert numbers(await drain(journals.journal("acme"))) == [2, 3, 4]
    async with journals_on(disk) as journals:
        assert journals.readable() == []
        assert journals.unread_bytes == 0


@pytest.mark.checklist("M31")
async def test_commits_in_any_order_move_the_read_point_over_the_prefix_only() -> None:
    disk = MemoryDisk()
    async with journals_on(disk) as journals:
        journal = journals.journal("acme")
        await fill(journal, 6)
        held = []
        for _ in range(3):
            reservation = journal.reserve(2, 1 << 20, 60, now=0)
            assert reservation is not None
            await journal.read(reservation)
            held.append(reservation)
        assert await journal.commit(held[2])
        assert await journal.commit(held[1])
        assert journal.unread_bytes == held[2].end
        await journal.sync_cursor()
        async with journals_on(MemoryDisk(disk.files())) as crashed:
            assert numbers(await drain(crashed.journal("acme"))) == [0, 1, 2, 3, 4, 5]
        assert await journal.commit(held[0])
        assert journal.unread_bytes == 0
        assert not await journal.commit(held[0])


@pytest.mark.checklist("M56")
async def test_records_not_committed_in_time_are_readable_again() -> None:
    async with journals_on(MemoryDisk()) as journals:
        journal = journals.journal("acme")
        await fill(journal, 4)
        late = journal.reserve(2, 1 << 20, 10, now=100)
        assert late is not None
        await journal.read(late)
        behind = journal.reserve(2, 1 << 20, 100, now=101)
        assert behind is not None
        await journal.read(behind)
        assert journals.readable(now=109) == []
        assert journals.readable(now=110) == ["acme"]
        again = journal.reserve(9, 1 << 20, 10, now=111)
        assert again is not None
        assert numbers(await journal.read(again)) == [0, 1]
        # The late one is told, changes nothing, and the new holder's commit counts.
        assert not await journal.commit(late)
        with pytest.raises(ReservationLapsed):
            await journal.read(late)
        journal.cancel(late)
        assert await journal.commit(again)
        assert await journal.commit(behind)
        assert journal.unread_bytes == 0


async def test_a_reservation_that_was_never_read_lapses_too() -> None:
    async with journals_on(MemoryDisk()) as journals:
        journal = journals.journal("acme")
        await fill(journal, 2)
        forgotten = journal.reserve(1, 1 << 20, 10, now=0)
        assert forgotten is not None
        assert not await journal.commit(forgotten)
        assert numbers(await drain(journal, now=10)) == [0, 1]


async def test_a_cancelled_hole_is_filled_before_anything_behind_it() -> None:
    async with journals_on(MemoryDisk()) as journals:
        journal = journals.journal("acme")
        await fill(journal, 6)
        held = []
        for _ in range(3):
            reservation = journal.reserve(2, 1 << 20, 60, now=0)
            assert reservation is not None
            await journal.read(reservation)
            held.append(reservation)
        journal.cancel(held[1])
        assert numbers(await drain(journal, max_records=9)) == [2, 3]
        await journal.commit(held[0])
        await journal.commit(held[2])
        assert journal.unread_bytes == 0


@pytest.mark.checklist("M32")
async def test_segments_are_unlinked_whole_after_the_cursor_is_durable() -> None:
    disk = MemoryDisk()
    async with journals_on(disk, segment_bytes=300) as journals:
        journal = journals.journal("acme")
        await fill(journal, 8)
        before = len(logs(disk))
        assert before == 3
        first = journal.reserve(9, 1 << 20, 60, now=0)
        assert first is not None
        await journal.read(first)
        await journal.commit(first)
        assert len(logs(disk)) == before  # not before the cursor says so on disk
        start = len(disk.log)
        await journal.sync_cursor()
        kinds = [op.kind for op in disk.log[start:]]
        assert kinds == ["create", "write", "sync", "rename", "syncdir", "unlink", "syncdir"]
        assert len(logs(disk)) == before - 1
        assert len(await drain(journal)) == 8 - 3
    assert len(logs(disk)) == 1  # the one that might still have grown
    async with journals_on(disk) as journals:
        assert journals.readable() == []
        await journals.close()
    assert logs(disk) == []


async def test_the_cursor_is_written_by_itself_and_not_for_every_commit() -> None:
    disk = MemoryDisk()
    async with journals_on(disk, cursor_every_s=0.02, inline=False) as journals:
        journal = journals.journal("acme")
        await fill(journal, 50)
        assert len(await drain(journal, max_records=1)) == 50
        assert journal.cursor_moved
        await eventually(lambda: disk.count("rename") > 0 and not journal.cursor_moved)
        assert disk.count("rename") <= 10
    async with journals_on(MemoryDisk(disk.files())) as again:
        assert again.readable() == []


async def test_a_cursor_that_cannot_be_written_is_tried_again() -> None:
    disk = MemoryDisk()
    async with journals_on(disk) as journals:
        journal = journals.journal("acme")
        await fill(journal, 2)
        await drain(journal)

        def fail(kind: str, path: Path) -> None:
            if kind == "rename":
                raise OSError(errno.EIO, "injected")

        disk.before = fail
        with pytest.raises(JournalUnavailable):
            await journal.sync_cursor()
        disk.before = lambda kind, path: None
        assert journal.cursor_moved
        await journal.sync_cursor()
        assert disk.count("rename") == 1


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"#:Cursor segment=x,offset=1,crc=00000000\n"]
)
async def test_a_spoilt_cursor_means_reading_again_from_the_front(content: bytes) -> None:
    disk, alarms = MemoryDisk(), Alarms()
    async with journals_on(disk) as journals:
        await fill(journals.journal("acme"), 3)
        await drain(journals.journal("acme"), max_records=1)
    files = disk.files() | {ROOT / "acme" / "cursor": content}
    async with journals_on(MemoryDisk(files), alarms=alarms) as journals:
        assert alarms.kinds == ["cursor"]
        assert numbers(await drain(journals.journal("acme"))) == [0, 1, 2]


async def test_skip_to_jumps_over_what_is_stored_already() -> None:
    disk = MemoryDisk()
    async with journals_on(disk) as journals:
        journal = journals.journal("acme")
        await fill(journal, 2)
        end = journal.durable_end
        assert end is not None
        offset = end.offset
        await journal.append(record(2))
    async with journals_on(disk) as journals:
        journal = journals.journal("acme")
        met = journal.reserve(9, 1 << 20, 60, now=0)
        assert met is not None
        journal.skip_to(met.segment_uid, offset)
        assert not await journal.commit(met)
        again = journal.reserve(9, 1 << 20, 60, now=0)
        assert again is not None
        assert (again.segment_uid, again.start) == (met.segment_uid, offset)
        assert numbers(await journal.read(again)) == [2]
        journal.skip_to(met.segment_uid, 10**9)
        journal.skip_to("f" * 32, 10)
        assert journal.unread_bytes == 0
        assert not journal.readable


async def test_a_read_error_is_told_and_the_records_can_be_read_later() -> None:
    disk = MemoryDisk()
    async with journals_on(disk) as journals:
        journal = journals.journal("acme")
        await fill(journal, 2)
        reservation = journal.reserve(9, 1 << 20, 60, now=0)
        assert reservation is not None

        def fail(kind: str, path: Path) -> None:
            if kind == "read":
                raise OSError(errno.EIO, "injected")

        disk.before = fail
        with pytest.raises(JournalUnavailable):
            await journal.read(reservation)
        disk.before = lambda kind, path: None
        assert numbers(await journal.read(reservation)) == [0, 1]
