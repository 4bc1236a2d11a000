"""The scheduler protocol: the seed's three calls, and what a choice is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from handlers.names import JobType


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A jobtype that could run now.

    `jobs` may be exact, an estimate or a mere weight; None: unknown. `oldest` is when its first
    waiting batch became due. `warm`: an idle context for it exists, so starting it is cheap.
    """

    jobtype: JobType
    jobs: int | None = None
    oldest: datetime | None = None
    warm: bool = False


class Scheduler(Protocol):
    """Chooses. Called whenever a batch could be started."""

    def select(self, candidates: Sequence[Candidate]) -> JobType | None:
        """One of the candidates' types, or None to start nothing now. Empty gives None."""

    def jobs_started(self, jobtype: JobType, count: int) -> None:
        """A batch of `count` jobs began to run."""

    def jobs_stopped(self, jobtype: JobType, count: int) -> None:
        """A batch of `count` jobs stopped running; they need not all have finished."""
