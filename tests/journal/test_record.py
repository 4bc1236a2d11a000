"""The frame format: what goes in comes out, and nothing else ever does."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_service.journal import Record
from queue_service.journal import record as record_module
from queue_service.journal.record import Frame, Incomplete, decode, encode
from queue_service.journal.scan import Scanner

from .support import BORN, record

SALT = bytes(range(16))
HOSTILE = [
    bytes(set(range(256)) - {10}) + b"\n",
    b"#:EndBatch\n",
    b"#:EndBatch\n#:Batch id=x,date=2026-11-18T08:00:00.123Z,seq=0,jobs=1,bytes=2\n",
    b"a\r\nb\r\n",
    "one\u2028two\x85three\n".encode(),
    b"\x00\n\x00\x00\n",
    b"\xff\xfe\xc3\x28\n",
    b"\n\n\n",
]


def frame_of(item: Record, seq: int = 0, salt: bytes = SALT) -> bytes:
    return b"".join(encode(item, seq, salt))


@pytest.mark.checklist("M30", "M57")
def test_a_frame_is_readable_and_carries_time_id_type_and_payload() -> None:
    frame = frame_of(record(7), seq=3)
    header, body, end = frame.splitlines()
    assert header.startswith(
        b"#:Batch id=r000007,date=2026-11-18T08:00:00.130Z,seq=3,jobs=1,bytes=8,"
        b"type=resize,opts=retries=3&delay=1,head="
    )
    assert (body, end) == (b'{"n":7}', b"#:EndBatch")


@pytest.mark.checklist("M59")
@pytest.mark.parametrize("body", HOSTILE)
def test_any_bytes_come_back_the_same(body: bytes) -> None:
    item = record(1, body)
    frame = frame_of(item)
    assert decode(frame, 0, SALT, final=True) == Frame(
        record=item, seq=0, end=len(frame), marked=True
    )


@given(
    body=st.binary(max_size=300),
    id_=st.text(
        st.characters(min_codepoint=32, max_codepoint=126, exclude_characters=",|"), min_size=1
    ),
    ms=st.integers(0, 10**13),
    seq=st.integers(0, 10**12),
)
def test_every_record_comes_back_the_same(body: bytes, id_: str, ms: int, seq: int) -> None:
    body += b"\n"
    item = Record(
        id=id_,
        date=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms),
        type="t@3",
        opts="",
        jobs=body.count(b"\n"),
        body=body,
    )
    found = decode(b"???" + frame_of(item, seq), 3, SALT, final=False)
    assert isinstance(found, Frame)
    assert (found.record, found.seq) == (item, seq)


@pytest.mark.checklist("M58")
@pytest.mark.parametrize(
    "bad", ["a,b", "a|b", "a\nb", "a\n", "", "a\rb", "a\u2028b", "\0", "x" * 3000]
)
def test_names_that_would_break_a_header_are_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="type"):
        record(1, type_=bad)
    with pytest.raises(ValueError, match="id"):
        Record(id=bad, date=BORN, type="t", opts="", jobs=1, body=b"\n")
    if bad:
        with pytest.raises(ValueError, match="opts"):
            Record(id="i", date=BORN, type="t", opts=bad, jobs=1, body=b"\n")


@pytest.mark.parametrize(
    "date",
    [
        BORN.replace(tzinfo=None),
        BORN.astimezone(timezone(timedelta(hours=1))),
        BORN.replace(microsecond=1),
    ],
)
def test_dates_that_would_not_come_back_the_same_are_refused(date: datetime) -> None:
    with pytest.raises(ValueError, match="date"):
        Record(id="i", date=date, type="t", opts="", jobs=1, body=b"\n")


def test_a_body_without_a_last_newline_is_refused() -> None:
    with pytest.raises(ValueError, match="newline"):
        Record(id="i", date=BORN, type="t", opts="", jobs=1, body=b"a")


def test_a_frame_cut_short_is_incomplete_while_more_may_come_and_unsound_at_the_end() -> None:
    frame = frame_of(record(1))
    for length in range(len(frame)):
        assert isinstance(decode(frame[:length], 0, SALT, final=False), Incomplete)
    body_end = len(frame) - len(record_module.END)
    for length in range(body_end):
        assert decode(frame[:length], 0, SALT, final=True) is None
    for length in range(body_end, len(frame)):
        found = decode(frame[:length], 0, SALT, final=True)
        assert isinstance(found, Frame)
        assert not found.marked


def test_every_flipped_bit_before_the_end_marker_is_noticed() -> None:
    frame = frame_of(record(1))
    for position in range(len(frame) - len(record_module.END)):
        for bit in range(8):
            spoilt = bytearray(frame)
            spoilt[position] ^= 1 << bit
            assert decode(bytes(spoilt), 0, SALT, final=True) is None


def test_a_frame_of_another_segment_does_not_pass() -> None:
    assert decode(frame_of(record(1), salt=bytes(16)), 0, SALT, final=True) is None


class WrongRecord(AssertionError):
    """A reader delivered something that nobody wrote."""


def written(rng: random.Random) -> tuple[list[Record], bytes]:
    """A small segment; some payloads carry a whole frame made without knowing the salt."""
    items = []
    for number in range(rng.randint(1, 4)):
        body = rng.randbytes(rng.randint(0, 40)).replace(b"\n", b"") + b"\n"
        if rng.random() < 0.3:
            body += frame_of(record(900 + number), number + 1, rng.randbytes(16))
        items.append(record(number, body))
    return items, b"".join(frame_of(item, seq) for seq, item in enumerate(items))


def mutate(rng: random.Random, data: bytes) -> bytes:
    kind = rng.randrange(6)
    at, size = rng.randrange(len(data)), rng.randint(1, 64)
    if kind == 0:
        return rng.randbytes(rng.randint(0, 400))
    if kind == 1:
        flipped = bytes([data[at] ^ (1 << rng.randrange(8))])
        return data[:at] + flipped + data[at + 1 :]
    if kind == 2:
        return data[:at] + data[at + size :]
    if kind == 3:
        return data[:at] + bytes(size) + data[at + size :]
    if kind == 4:
        return data[:at] + data[at : at + size] * 2 + data[at + size :]
    return data[:at] + rng.choice([b"#:Batch ", b"#:EndBatch\n", b"\n"]) + data[at:]


def fuzz(rng: random.Random, inputs: int) -> None:
    """Raise WrongRecord when any of `inputs` damaged segments yields a record nobody wrote."""
    while inputs > 0:
        items, clean = written(rng)
        known = {item.id: item for item in items}
        for _ in range(min(50, inputs)):
            inputs -= 1
            data = mutate(rng, clean)
            if rng.random() < 0.3 and data:
                data = mutate(rng, data)

            def read(offset: int, size: int, data: bytes = data) -> bytes:
                return data[offset : offset + size]

            scan = Scanner(read, SALT, 0, len(data), 0).scan(10, rng.choice([60, 1 << 20]))
            if any(known.get(item.id) != item for item in scan.records):
                raise WrongRecord(data)
            if len({item.id for item in scan.records}) != len(scan.records):
                raise WrongRecord(data)


@pytest.mark.checklist("M59", "M60")
def test_no_damaged_input_ever_yields_a_record_that_was_not_written() -> None:
    fuzz(random.Random(20261118), 100_000)


def test_the_fuzzer_notices_a_build_without_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_module, "checksum", lambda crc, data: 0)
    with pytest.raises(WrongRecord):
        fuzz(random.Random(1), 2_000)
