"""Oldest first: the type whose first waiting batch has been due longest, whoever owns it.

Simple and predictable, but not fair: a tenant with a deep backlog is served until it is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from handlers.names import JobType
from queue_service.scheduler.base import Candidate

_UNKNOWN = datetime.max.replace(tzinfo=UTC)


class OldestFirst:
    """Keeps no state."""

    def select(self, candidates: Sequence[Candidate]) -> JobType | None:
        if not candidates:
            return None
        return min(candidates, key=lambda c: (c.oldest or _UNKNOWN, not c.warm, c.jobtype)).jobtype

    def jobs_started(self, jobtype: JobType, count: int) -> None:
        """Age alone decides; what runs does not matter."""

    def jobs_stopped(self, jobtype: JobType, count: int) -> None:
        """See jobs_started."""
