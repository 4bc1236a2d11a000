"""Blocks are cut at newlines and nowhere else: checked against a model that takes lines apart."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import strategies as st

from queue_service import block
from tests.properties import given

HOSTILE = [
    b"",
    b"\0",
    b"\r",
    b"a\rb\r",
    b"\x0b\x0c\x1c\x1d\x1e\x85",
    "one\u2028two\u2029three".encode(),
    b"\xff\xfe\xc3\x28",
    b"\xed\xa0\x80",
    b"#:Batch id=x,bytes=2",
    b"#:EndBatch",
    b"J: resize|{}",
    bytes(set(range(256)) - {10}),
]
LINES = st.lists(
    st.one_of(
        st.sampled_from(HOSTILE), st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b" "))
    ),
    max_size=30,
)
SOME_LINES = LINES.filter(bool)


def joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


@pytest.mark.checklist("M5")
@given(LINES)
def test_payload_bytes_mean_nothing(lines: list[bytes]) -> None:
    data = joined(lines)
    assert block.lines_of(data) == lines
    assert block.count(data) == len(lines)


@pytest.mark.checklist("M5")
@pytest.mark.parametrize("line", HOSTILE)
def test_a_hostile_line_is_one_line(line: bytes) -> None:
    data = joined([b"before", line, b"after"])
    assert block.count(data) == 3
    assert block.pick(data, [1]) == line + b"\n"
    assert [piece for piece, _ in block.cut(data, 1, 1 << 20)] == [
        b"before\n",
        line + b"\n",
        b"after\n",
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"a", b"a\n"),
        (b"a\n", b"a\n"),
        (b"a\nb", b"a\nb\n"),
        (b"a\n\n", b"a\n\n"),
        (b"a\r", b"a\r\n"),
        (b"a\r\n", b"a\r\n"),
        (b"a\xe2\x80\xa8", b"a\xe2\x80\xa8\n"),
        (b"", b"\n"),
    ],
)
def test_the_last_line_is_ended_and_nothing_else_changes(body: bytes, expected: bytes) -> None:
    assert block.normalise(body) == expected


@given(SOME_LINES, st.integers(0, 40))
def test_the_first_line_over_a_limit_is_found(lines: list[bytes], limit: int) -> None:
    over = [number for number, line in enumerate(lines) if len(line) > limit]
    assert block.first_over(joined(lines), limit) == (over[0] if over else None)


@pytest.mark.parametrize(
    ("lines", "over"),
    [
        ([b"x" * 10], None),
        ([b"x" * 11], 0),
        ([b"x" * 10] * 3 + [b"x" * 11], 3),
        ([b"", b"", b"x" * 11, b"x" * 99], 2),
        ([b"x" * 11, b"", b""], 0),
        ([b"x" * 5, b"y" * 5, b"z" * 11], 2),
        ([b""] * 50, None),
    ],
)
def test_a_line_of_just_the_limit_is_not_over_it(lines: list[bytes], over: int | None) -> None:
    assert block.first_over(joined(lines), 10) == over


@given(LINES, st.data())
def test_the_offset_of_a_line_is_the_length_of_those_before_it(
    lines: list[bytes], data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(lines)))
    further = data.draw(st.integers(0, len(lines) - first))
    whole, start = joined(lines), len(joined(lines[:first]))
    assert block.offset_of(whole, first) == start
    assert block.offset_of(whole, further, start) == len(joined(lines[: first + further]))


@pytest.mark.parametrize("lines", [1023, 1024, 1025, 2048, 2049, 5000])
def test_far_offsets_are_found_too(lines: int) -> None:
    data = b"".join(b"%d\n" % number for number in range(5001))
    start = block.offset_of(data, lines)
    assert data[start : start + 5].split(b"\n")[0] == b"%d" % lines


@given(LINES, st.integers(1, 2000))
def test_an_offset_behind_the_last_line_is_refused(lines: list[bytes], more: int) -> None:
    with pytest.raises(ValueError, match="fewer lines"):
        block.offset_of(joined(lines), len(lines) + more)


@given(SOME_LINES, st.integers(1, 35), st.integers(1, 120))
def test_pieces_join_back_and_keep_the_limits(
    lines: list[bytes], lines_max: int, bytes_max: int
) -> None:
    pieces = list(block.cut(joined(lines), lines_max, bytes_max))
    assert b"".join(piece for piece, _ in pieces) == joined(lines)
    for piece, count in pieces:
        assert piece.endswith(b"\n")
        assert piece.count(b"\n") == count
        assert 1 <= count <= lines_max
        assert len(piece) <= bytes_max or count == 1


@given(SOME_LINES, st.integers(1, 35), st.integers(1, 120))
def test_pieces_are_as_large_as_they_may_be(
    lines: list[bytes], lines_max: int, bytes_max: int
) -> None:
    pieces = list(block.cut(joined(lines), lines_max, bytes_max))
    for (piece, count), (following, _) in pairwise(pieces):
        next_line = following[: following.index(b"\n") + 1]
        assert count == lines_max or len(piece) + len(next_line) > bytes_max


def test_a_block_within_the_limits_is_passed_on_uncopied() -> None:
    data = joined([b"a", b"b"])
    ((piece, count),) = block.cut(data, 2, 4)
    assert piece is data
    assert count == 2


@pytest.mark.parametrize(
    ("lines_max", "bytes_max", "expected"),
    [
        (1, 99, [(b"a\n", 1), (b"bbbb\n", 1), (b"c\n", 1)]),
        (2, 99, [(b"a\nbbbb\n", 2), (b"c\n", 1)]),
        (3, 7, [(b"a\nbbbb\n", 2), (b"c\n", 1)]),
        (3, 6, [(b"a\n", 1), (b"bbbb\n", 1), (b"c\n", 1)]),
        (3, 1, [(b"a\n", 1), (b"bbbb\n", 1), (b"c\n", 1)]),
        (3, 9, [(b"a\nbbbb\nc\n", 3)]),
    ],
)
def test_cut(lines_max: int, bytes_max: int, expected: list[tuple[bytes, int]]) -> None:
    assert list(block.cut(b"a\nbbbb\nc\n", lines_max, bytes_max)) == expected


@given(SOME_LINES, st.data())
def test_picked_lines_come_in_the_order_asked_for(lines: list[bytes], data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=10))
    assert block.pick(joined(lines), indices) == joined([lines[index] for index in indices])
