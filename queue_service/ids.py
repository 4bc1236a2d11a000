"""Ids of POSTs and jobs: fixed at append, for ever, time-ordered, never given twice.

A post's id is 22 characters of lower-case base 32: 9 of milliseconds, 3 of a counter inside the
millisecond, 10 of a nonce drawn when the process starts. The nonce lies in no file, so neither
a cloned disk nor a reused sysid can mint an id again. A job's id is `{post}-{line}`.
"""

from __future__ import annotations

import secrets
from functools import lru_cache

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_POST_CHARS = frozenset(_DIGITS)
_COUNTER_LIMIT = 32**3
POST_LENGTH = 22


# Two digits at a time, because ids are made for every request.
_PAIRS = [high + low for high in _DIGITS for low in _DIGITS]


def _base32(value: int, width: int) -> str:
    out = ""
    for _ in range(0, width, 2):
        out = _PAIRS[value & 1023] + out
        value >>= 10
    return out[-width:]


class IdMint:
    """Makes post ids that only ever grow, also when the clock is set back."""

    def __init__(self, nonce: int | None = None) -> None:
        self._nonce = _base32(secrets.randbits(50) if nonce is None else nonce, 10)
        self._ms = -1
        self._counter = 0
        self._head = ""

    def post_id(self, now_ms: int) -> str:
        """The next id. A clock that stands still or goes back makes the counter run instead."""
        self._counter += 1
        if now_ms > self._ms or self._counter == _COUNTER_LIMIT:
            self._ms, self._counter = max(now_ms, self._ms + 1), 0
            self._head = _base32(self._ms, 9)
        return self._head + _base32(self._counter, 3) + self._nonce


def job_id(post: str, line: int) -> str:
    return f"{post}-{line}"


def parse_post_id(text: str) -> str | None:
    """Return `text` when it has the form of a post id, else None."""
    return text if len(text) == POST_LENGTH and _POST_CHARS.issuperset(text) else None


def parse_job_id(text: str) -> tuple[str, int] | None:
    """Take a job id apart, or answer None for anything that cannot be one."""
    post, dash, line = text.partition("-")
    if not dash or parse_post_id(post) is None:
        return None
    if not (line.isascii() and line.isdigit() and len(line) <= 9) or line != str(int(line)):
        return None
    return post, int(line)


@lru_cache(maxsize=64)
def _ids_template(count: int) -> bytes:
    return b",".join(b'"@-%d"' % line for line in range(count))


def ids_json(post: str, count: int) -> bytes:
    """The ids of a post's jobs as a JSON array, without building them one by one."""
    return b"[" + _ids_template(count).replace(b"@", post.encode()) + b"]"
