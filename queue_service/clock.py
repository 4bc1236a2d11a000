"""The real clock, read here and handed on as an argument. Everything else is told the time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now() -> datetime:
    """The time in UTC, in milliseconds: what MongoDB keeps of a date."""
    return _at(time.time_ns() // 1_000_000)


@lru_cache(maxsize=2)
def _at(ms: int) -> datetime:
    """Made once for all who ask within a millisecond."""
    return _EPOCH + timedelta(milliseconds=ms)


def monotonic() -> float:
    """Seconds that only ever grow, for deadlines inside this process."""
    return time.monotonic()
