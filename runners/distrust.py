"""Checks of single values that a child host has sent: a valid value, or a ProtocolError.

Which frames there are and when they are due stands in `wire`.
"""

from __future__ import annotations

from typing import Final

from runners.base import Bad, Spawned

_TIME_MAX_S: Final = 1e9
_INDEX_DIGITS: Final = 9


class ProtocolError(Exception):
    """The child sent something that is no valid frame, or not one that is due now."""


def read_bad(raw: object, first: int, end: int) -> list[Bad]:
    """The jobs of lines first..end-1 that did not end well."""
    if type(raw) is not list:
        raise ProtocolError("bad is no list")
    found: list[Bad] = []
    for entry in raw:
        if type(entry) is not list or len(entry) != 3:
            raise ProtocolError("an entry of bad has not three fields")
        index, exitcode, delay = entry
        if type(index) is not int or not first <= index < end:
            raise ProtocolError("an index of bad is not one of the jobs just done, in order")
        if type(exitcode) is not int or exitcode // 100 not in (1, 4, 5):
            raise ProtocolError("an exitcode of bad is none of 1xx, 4xx, 5xx")
        found.append(Bad(index, exitcode, None if delay is None else read_seconds(delay)))
        first = index + 1
    return found


def read_spawned(block: bytes, first: int, end: int) -> list[Spawned]:
    """The jobs that lines first..end-1 have spawned. Their type's name is not checked here."""
    *lines, rest = block.split(b"\n")
    if rest:
        raise ProtocolError("a spawned job is no whole line")
    found: list[Spawned] = []
    for line in lines:
        number, _, job = line.partition(b" ")
        type_, bar, payload = job.partition(b"|")
        if not bar:
            raise ProtocolError("a spawned job has no type")
        if not number.isdigit() or len(number) > _INDEX_DIGITS or not first <= int(number) < end:
            raise ProtocolError("an index of jobs is not one of the jobs just done, in order")
        first = int(number)
        found.append(Spawned(first, type_.decode(errors="replace"), payload))
    return found


def read_integer(head: dict[str, object], name: str, low: int, high: int) -> int:
    value = head[name]
    if type(value) is not int or not low <= value <= high:
        raise ProtocolError(f"{name} is no number from {low} to {high}")
    return value


def read_seconds(value: object) -> float:
    # orjson lets no NaN or infinity pass; bool is refused because it is an int in disguise.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ProtocolError("a time is no number")
    if not 0 <= value <= _TIME_MAX_S:
        raise ProtocolError("a time is no number of seconds that can be")
    return float(value)
