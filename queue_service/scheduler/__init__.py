"""Schedulers: which jobtype runs next. One small class each, named in the table below.

A policy is pure: it is told what waits, what is warm and what runs, and answers with one of the
given types. It reads no store and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from queue_service.scheduler.base import Scheduler
from queue_service.scheduler.oldest import OldestFirst
from queue_service.scheduler.round_robin import RoundRobin

POLICIES: Mapping[str, Callable[[], Scheduler]] = {
    "round-robin": RoundRobin,
    "oldest": OldestFirst,
}


class UnknownScheduler(ValueError):
    """A policy name that is not in the table."""


def make(name: str) -> Scheduler:
    """The policy of this name, new."""
    if name not in POLICIES:
        raise UnknownScheduler(f"unknown scheduler {name!r}; known are {', '.join(POLICIES)}")
    return POLICIES[name]()
