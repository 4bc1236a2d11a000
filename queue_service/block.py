"""Blocks: payloads or results as newline-ended lines in one piece of bytes.

The only place where lines are counted, cut and picked. Lines are split at b"\\n" alone:
`splitlines` would also cut at CR, and its str form at U+2028, which are data. Nothing here decodes
a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache


def normalise(body: bytes) -> bytes:
    """End the last line, so that a block is always whole lines."""
    return body if body.endswith(b"\n") else body + b"\n"


def count(block: bytes) -> int:
    """How many lines a block has."""
    return block.count(b"\n")


def first_over(block: bytes, limit: int) -> int | None:
    """The 0-based number of the first line longer than `limit` bytes, or None."""
    if len(block) <= limit:  # no line can be longer than the block: the usual case costs nothing
        return None
    start = number = 0
    while start < len(block):
        # Jump as far as a line may reach; if a newline lies in there, so does the line's end.
        last = block.rfind(b"\n", start, start + limit + 1)
        if last < 0:
            return number
        number += block.count(b"\n", start, last + 1)
        start = last + 1
    return None


@lru_cache(maxsize=256)
def _lines_pattern(lines: int) -> re.Pattern[bytes]:
    return re.compile(rb"(?:[^\n]*\n){%d}" % lines if lines else b"")


def offset_of(block: bytes, lines: int, start: int = 0) -> int:
    """Where the line that lies `lines` lines behind `start` begins."""
    position = start
    while lines > 0:
        step = min(lines, 1024)  # bounds the number of compiled patterns
        match = _lines_pattern(step).match(block, position)
        if match is None:
            raise ValueError("the block has fewer lines than asked for")
        position, lines = match.end(), lines - step
    return position


def cut(block: bytes, lines_max: int, bytes_max: int) -> Iterator[tuple[bytes, int]]:
    """Cut a block into pieces of at most so many lines and bytes, each with its line count.

    A single line longer than `bytes_max` is a piece of its own.
    """
    left = count(block)
    if left <= lines_max and len(block) <= bytes_max:
        yield block, left
        return
    start = 0
    while left:
        taken = min(lines_max, left)
        end = offset_of(block, taken, start)
        if end - start > bytes_max:
            end = block.rfind(b"\n", start, start + bytes_max) + 1 or block.index(b"\n", start) + 1
            taken = block.count(b"\n", start, end)
        yield block[start:end], taken
        start, left = end, left - taken


def lines_of(block: bytes) -> list[bytes]:
    """All lines without their newlines. For what is asked for by id, not for the normal path."""
    lines = block.split(b"\n")
    lines.pop()
    return lines


def pick(block: bytes, indices: Sequence[int]) -> bytes:
    """The block of the lines with these numbers."""
    lines = lines_of(block)
    return b"".join(lines[index] + b"\n" for index in indices)
