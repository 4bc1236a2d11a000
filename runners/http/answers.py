"""What is answered: a response turned into one result line and one verdict for each job.

An answer of type `application/x-ndjson` holds one status line for each job; every other is one
status for all. Nothing in it is believed: what is missing or bad costs its own job, and no other.
Reads no socket.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

import orjson

from runners.base import CONTEXT_DIED, FAILED, RETRY, Bad

NDJSON: Final = "application/x-ndjson"
REFUSED: Final = 403
BAD_ANSWER: Final = CONTEXT_DIED  # 502, as a gateway says it
_LATER: Final = frozenset({408, 425, 429, 503})
_SHARED_MAX: Final = 16 << 20
_NULL: Final = b"null"
_DELAY_MAX_S: Final = 10 * 366 * 86400.0
_MISSING: Final = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An answer that came whole."""

    status: int
    media_type: str
    retry_after: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """`out` has a line for each of the request's jobs; `bad` counts from the request's first."""

    out: bytes
    bad: tuple[Bad, ...]


def read(response: Response, count: int, now_s: float) -> Results:
    """The results of a request of `count` jobs."""
    if 200 <= response.status < 300 and response.media_type == NDJSON:
        return _status_lines(response.body, count)
    exitcode = _exitcode(response.status)
    if exitcode is None:
        return all_bad(count, BAD_ANSWER, f"answered with status {response.status}")
    value = _shared_value(response, exitcode)
    if len(value) * count > _SHARED_MAX:
        return all_bad(count, BAD_ANSWER, f"one answer for all {count} jobs is too large for that")
    out = (value + b"\n") * count
    if exitcode < 300 and exitcode >= 200:
        return Results(out=out, bad=())
    delay_s = _retry_after(response.retry_after, now_s) if exitcode == RETRY else None
    return Results(out=out, bad=tuple(Bad(index, exitcode, delay_s) for index in range(count)))


def all_bad(count: int, exitcode: int, message: str) -> Results:
    """The same misfortune for every job."""
    bad = tuple(Bad(index, exitcode) for index in range(count))
    return Results(out=(_error(message) + b"\n") * count, bad=bad)


def _status_lines(body: bytes, count: int) -> Results:
    """One line each, in order or with an `index`. The first line for a job counts."""
    values: list[bytes | None] = [None] * count
    bad: dict[int, Bad] = {}
    loads, dumps = orjson.loads, orjson.dumps
    for number, line in enumerate(body.split(b"\n", count)[:count]):
        try:
            said = loads(line)
            index = said.get("index", number)
            if type(index) is not int or not 0 <= index < count or values[index] is not None:
                continue
            if said["status"] == 200 and type(said["status"]) is int:
                values[index] = dumps(said.get("value"))
            else:
                values[index] = _uncommon(said, index, bad)
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
            continue  # the line's job is found below, without a value
    for index, value in enumerate(values):
        if value is None:
            values[index] = _error("no valid status line was answered for this job")
            bad[index] = Bad(index, BAD_ANSWER)
    out = b"\n".join(values) + b"\n"  # type: ignore[arg-type]  # none is None any more
    return Results(out=out, bad=tuple(bad[index] for index in sorted(bad)))


def _uncommon(said: dict[str, object], index: int, bad: dict[int, Bad]) -> bytes | None:
    """A status line that is not plainly 200; None when it is invalid."""
    status = said["status"]
    exitcode = _exitcode(status) if type(status) is int else None
    delay_s = _delay(said.get("delay"))
    if exitcode is None or delay_s is _MISSING:
        return None
    value = said.get("value", _MISSING)
    if 200 <= exitcode < 300:
        return orjson.dumps(None if value is _MISSING else value)
    line = _error(f"answered with status {status}") if value is _MISSING else orjson.dumps(value)
    wait_s = delay_s if exitcode == RETRY and isinstance(delay_s, float) else None
    bad[index] = Bad(index, exitcode, wait_s)
    return line


def _exitcode(status: int) -> int | None:
    """Ours for theirs; None when it is no status."""
    if not 100 <= status <= 599:
        return None
    if status < 200 or status in _LATER:
        return RETRY
    return FAILED if 300 <= status < 400 else status


def _delay(delay: object) -> object:
    """Seconds, None when none were given, _MISSING when they cannot be used."""
    if delay is None:
        return None
    if type(delay) not in (int, float) or not isinstance(delay, int | float):
        return _MISSING
    return float(delay) if math.isfinite(delay) and 0 <= delay <= _DELAY_MAX_S else _MISSING


def _retry_after(text: str, now_s: float) -> float | None:
    """Seconds or a date; None for anything else, so that our own pauses apply."""
    if text.isascii() and text.isdigit():
        return min(float(text), _DELAY_MAX_S)
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return min(max(0.0, when.timestamp() - now_s), _DELAY_MAX_S)


def _shared_value(response: Response, exitcode: int) -> bytes:
    """What every job gets: the JSON that was answered, or the text."""
    if exitcode == FAILED and 300 <= response.status < 400:
        return _error(f"answered with status {response.status}; redirects are not followed")
    if not response.body.strip():
        is_well = 200 <= exitcode < 300
        return _NULL if is_well else _error(f"answered with status {response.status}")
    try:
        return orjson.dumps(orjson.loads(response.body))
    except ValueError:
        return orjson.dumps(response.body.decode(errors="replace"))


def _error(message: str) -> bytes:
    return orjson.dumps({"error": message})
