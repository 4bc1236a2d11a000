"""The work that everything is measured with: one tiny handler and the payload lines for it.

Does not send or run anything.
"""

from __future__ import annotations

import inspect

_FIRST = 100_000
_DISTINCT = 900_000  # numbers of six digits, so that every line is as long as any other


def handler(payload: dict[str, int], context: object) -> dict[str, int]:
    return {"n": payload["n"] + 1}


def source() -> str:
    """The handler as it is uploaded: the very text that the bare loop runs."""
    return inspect.getsource(handler)


def number(job: int) -> int:
    return _FIRST + job % _DISTINCT


def lines(first: int, count: int) -> bytes:
    """The payloads of `count` jobs from number `first` on, each ended by a newline."""
    return b"".join(b'{"n": %d}\n' % number(job) for job in range(first, first + count))
