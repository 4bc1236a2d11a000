"""When appends are refused at once after the disk has failed, and when they are tried again.

A first failure costs only the appends it hit. A second one soon after means that the disk, not a
file, is in trouble: appends are then refused for a while, after which a single one tries again.
Pure bookkeeping: time is an argument, and what a failure is stands in `appender`.
"""

from __future__ import annotations


class Health:
    def __init__(self, *, window_s: float, refusal_s: float) -> None:
        self._window_s = window_s
        self._refusal_s = refusal_s
        self._last_failure: float | None = None
        self._refused_until: float | None = None
        self._probing = False

    def healthy(self, now: float) -> bool:
        """Whether an append would be tried now, be it as a probe."""
        return self._refused_until is None or now >= self._refused_until

    def admits(self, now: float) -> bool:
        """Whether this append may be tried. After a refusal the first one asked for is the probe,
        and the others are refused until `succeeded` or `failed` tells how it went."""
        if self._refused_until is None:
            return True
        if self._probing or now < self._refused_until:
            return False
        self._probing = True
        return True

    def succeeded(self) -> None:
        self._refused_until = None
        self._probing = False

    def failed(self, now: float) -> None:
        again = self._last_failure is not None and now - self._last_failure <= self._window_s
        self._last_failure = now
        self._refused_until = now + self._refusal_s if again else None
        self._probing = False
