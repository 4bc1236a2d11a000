"""The real clock, read here and handed on as an argument. Everything else is told the time."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now() -> datetime:
    """The time in UTC, in milliseconds: what MongoDB keeps of a date."""
    moment = datetime.now(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def monotonic() -> float:
    """Seconds that only ever grow, for deadlines inside this process."""
    return time.monotonic()
