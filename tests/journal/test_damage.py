"""Damaged files: what is sound is delivered, what is not is set aside, nothing is made up."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from queue_service.journal import Record
from queue_service.journal.record import END, START, encode
from queue_service.journal.segment import SegmentName

from .memory_disk import MemoryDisk
from .support import ROOT, Alarms, drain, journals_on, record

Files = dict[Path, bytes | None]
TENANT = ROOT / "acme"


def content(files: Files, path: Path) -> bytes:
    data = files[path]
    assert data is not None
    return data


def segments(files: Files) -> list[Path]:
    return sorted(path for path in files if path.suffix == ".log")


async def written(items: list[Record], segment_bytes: int = 1 << 20) -> Files:
    disk = MemoryDisk()
    async with journals_on(disk, segment_bytes=segment_bytes) as journals:
        for item in items:
            await journals.journal("acme").append(item)
    return disk.files()


async def reopened(files: Files) -> tuple[list[Record], Alarms, Files]:
    """Everything that an opening after damage delivers, tells and leaves."""
    disk, alarms = MemoryDisk(files), Alarms()
    async with journals_on(disk, alarms=alarms) as journals:
        found = await drain(journals.journal("acme"), max_records=4)
        await journals.journal("acme").append(record(999_999))
        assert await drain(journals.journal("acme")) == [record(999_999)]
    return found, alarms, disk.files()


@pytest.mark.checklist("M60")
async def test_a_torn_tail_is_set_aside_and_never_merged_with_what_follows() -> None:
    items = [record(n) for n in range(3)]
    files = await written(items)
    (path,) = segments(files)
    data = content(files, path)
    start = data.rindex(START)
    for length in range(start + 1, len(data) - len(END)):
        found, alarms, left = await reopened(files | {path: data[:length]})
        assert found == items[:2]
        assert alarms.kinds == ["tail"]
        assert content(left, path.with_name(f"{path.name}.bad-{start}")) == data[start:length]


async def test_a_damaged_end_marker_spoils_nothing_and_is_told() -> None:
    items = [record(n) for n in range(3)]
    files = await written(items)
    (path,) = segments(files)
    data = content(files, path)
    for spoilt in (data.replace(END, b"#:EndBotch\n", 1), data.replace(END, b"", 1), data[:-3]):
        found, alarms, _ = await reopened(files | {path: spoilt})
        assert found == items
        assert alarms.kinds == ["marker"]


async def test_a_bad_record_in_the_middle_is_set_aside_and_named() -> None:
    items = [record(n) for n in range(5)]
    files = await written(items)
    (path,) = segments(files)
    data = content(files, path)
    at = data.index(b'{"n":2}')
    spoilt = data[:at] + b"X" + data[at + 1 :]
    found, alarms, left = await reopened(files | {path: spoilt})
    assert found == items[:2] + items[3:]
    assert alarms.kinds == ["bytes", "gap"]
    damage = alarms.found[0][2]
    assert damage.detail == "batch r000002"
    aside = content(left, path.with_name(f"{path.name}.bad-{damage.offset}"))
    assert b"id=r000002" in aside
    assert len(aside) == damage.length


async def test_missing_and_repeated_records_are_told_although_every_byte_is_sound() -> None:
    items = [record(n) for n in range(4)]
    files = await written(items)
    (path,) = segments(files)
    data = content(files, path)
    starts = [n for n in range(len(data)) if data.startswith(START, n)]
    found, alarms, _ = await reopened(files | {path: data[: starts[1]] + data[starts[2] :]})
    assert (found, alarms.kinds) == ([items[0], *items[2:]], ["gap"])
    doubled = data[: starts[2]] + data[starts[1] :]
    found, alarms, _ = await reopened(files | {path: doubled})
    assert (found, alarms.kinds) == (items, ["repeat"])


async def test_a_frame_forged_inside_a_payload_is_never_delivered() -> None:
    forged = b"".join(b"".join(encode(record(77), seq, bytes(16))) for seq in range(5))
    items = [record(0), record(1, forged), record(2)]
    files = await written(items)
    (path,) = segments(files)
    data = content(files, path)
    for at in range(data.index(START, 5), data.index(forged) + len(forged)):
        spoilt = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        found, alarms, _ = await reopened(files | {path: spoilt})
        assert found == [items[0], items[2]]
        assert alarms.kinds == ["bytes", "gap"]


async def test_a_frame_copied_from_another_segment_is_never_delivered() -> None:
    files = await written([record(0)])
    (path,) = segments(files)
    stolen = content(files, path)
    # Somebody who has read an old segment still does not know the salt of a new one.
    others = await written([record(1, stolen), record(2)])
    (other,) = segments(others)
    spoilt = b"?" + content(others, other)[1:]
    found, alarms, _ = await reopened(others | {other: spoilt})
    assert found == [record(2)]
    assert alarms.kinds == ["bytes", "gap"]


class Wrong(AssertionError):
    """A damaged journal delivered what was never written, lost what was sound, or kept quiet."""


def spoil(rng: random.Random, data: bytes) -> bytes:
    kind, at = rng.randrange(4), rng.randrange(len(data))
    if kind == 0:
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + data[at + rng.randint(1, 300) :]
    if kind == 2:
        block = data[at : at + 4096]
        return data[:at] + bytes(len(block)) + data[at + 4096 :]
    block = data[at : at + rng.choice([64, 512, 4096])]
    return data[:at] + block + data[at:]


async def check_corruption(rng: random.Random, items: list[Record], files: Files) -> None:
    path = rng.choice(segments(files))
    clean = content(files, path)
    spoilt = spoil(rng, clean)
    found, alarms, _ = await reopened(files | {path: spoilt})
    known = {item.id: item for item in items}
    if any(known.get(item.id) != item for item in found):
        raise Wrong("a record that was not written")
    order = [item.id for item in found]
    if order != sorted(set(order)):
        raise Wrong("out of order or twice")
    missing = [item for item in items if item.id not in set(order)]
    name = SegmentName.parse(path.name)
    assert name is not None
    for item in missing:
        if any(b"".join(encode(item, seq, name.salt)) in spoilt for seq in range(len(items))):
            raise Wrong("a sound record was not delivered")
    cut_between_records = clean.startswith(spoilt) and (not spoilt or spoilt.endswith(END))
    if spoilt != clean and not alarms.found and not cut_between_records:
        raise Wrong("damage went unnoticed")


async def corruption_run(seed: int, count: int) -> None:
    rng = random.Random(seed)
    items = [
        record(n, rng.randbytes(rng.choice([5, 200, 3000])).replace(b"\n", b" ") + b"\n")
        for n in range(30)
    ]
    files = await written(items, segment_bytes=12_000)
    assert len(segments(files)) >= 3
    for _ in range(count):
        await check_corruption(rng, items, files)


@pytest.mark.checklist("M60")
async def test_500_corruptions_never_yield_a_wrong_payload_and_are_all_noticed() -> None:
    for seed in range(5):
        await corruption_run(seed, 100)


async def test_the_corruption_test_notices_a_build_without_checksums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("queue_service.journal.record.checksum", lambda crc, data: 0)
    with pytest.raises(Wrong):
        await corruption_run(1, 100)
