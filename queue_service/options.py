"""What a submitter may ask for: read from a request, carried through the journal as text.

The text holds only what was asked for, in one canonical form, so that equal options are equal
text and most records carry none. It does not know HTTP beyond a mapping of strings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from urllib.parse import parse_qsl, urlencode

from queue_service.batch import LIVE_BEFORE, Options
from queue_service.errors import BadRequest
from queue_service.settings import Settings

_TEN_YEARS_S = 10 * 366 * 86400
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What holds where nothing was asked for, and the largest time limit that may be."""

    options: Options
    timeout_max_s: float

    @classmethod
    def of(cls, settings: Settings) -> Defaults:
        options = Options(
            priority=50,
            timeout_s=settings.job_timeout_s,
            retries=settings.retries,
            retry_delay_s=None,
            window_s=settings.retry_window_s,
        )
        return cls(options=options, timeout_max_s=settings.job_timeout_max_s)


def read(query: Mapping[str, str], defaults: Defaults, now: datetime) -> str:
    """Check the options of a request and write them down; BadRequest names the parameter."""
    if not query:
        return ""
    parsers: dict[str, Callable[[str, str], float | int]] = {
        "priority": lambda name, text: whole(name, text, 1, 100),
        "timeout": lambda name, text: seconds(name, text, 0.001, defaults.timeout_max_s),
        "retries": lambda name, text: whole(name, text, 0, 1000),
        "retry_delay": lambda name, text: seconds(name, text, 0, 86400),
    }
    asked = {name: parse(name, query[name]) for name, parse in parsers.items() if name in query}
    at = _due(query, now)
    if at is not None:
        # Rounded up: not before the moment that was asked for.
        asked["at"] = -((_EPOCH - at) // _MS)
    return urlencode(sorted(asked.items()))


def _due(query: Mapping[str, str], now: datetime) -> datetime | None:
    if "at" in query and "delay" in query:
        raise BadRequest("parameters 'at' and 'delay' exclude each other")
    if "delay" in query:
        return now + timedelta(seconds=seconds("delay", query["delay"], 0, _TEN_YEARS_S))
    if "at" not in query:
        return None
    try:
        at = datetime.fromisoformat(query["at"])
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadRequest("parameter 'at' must be an ISO 8601 time") from None
    if at > LIVE_BEFORE - _MS:
        raise BadRequest("parameter 'at' is too far away")
    return at


@lru_cache(maxsize=1024)
def understand(text: str, defaults: Defaults) -> tuple[Options, datetime | None]:
    """The options a journal record was accepted with, and when it is due (None: at once)."""
    asked = dict(parse_qsl(text))
    base = defaults.options
    options = Options(
        priority=int(asked.get("priority", base.priority)),
        timeout_s=float(asked.get("timeout", base.timeout_s)),
        retries=int(asked.get("retries", base.retries)),
        retry_delay_s=float(asked["retry_delay"]) if "retry_delay" in asked else None,
        window_s=base.window_s,
    )
    at = _EPOCH + int(asked["at"]) * _MS if "at" in asked else None
    return options, at


def seconds(name: str, text: str, low: float, high: float) -> float:
    """A number of seconds out of a query parameter."""
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not low <= value <= high:  # also false for NaN
        raise BadRequest(f"parameter {name!r} must be a number from {low:g} to {high:g}")
    return value + 0.0  # there is but one zero


def whole(name: str, text: str, low: int, high: int) -> int:
    """A whole number out of a query parameter."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and low <= int(text) <= high):
        raise BadRequest(f"parameter {name!r} must be a whole number from {low} to {high}")
    return int(text)
