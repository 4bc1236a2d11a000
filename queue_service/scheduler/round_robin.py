"""Round robin: tenants take turns first, then the jobtypes of a tenant among themselves.

A tenant with a thousand types gets no more turns than a tenant with one. Warmth is a tie-breaker
only among types of the tenant whose turn it is that have waited equally many turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from handlers.names import JobType
from queue_service.scheduler.base import Candidate

_REMEMBERED = 20_000
_Key = TypeVar("_Key")


class RoundRobin:
    """Least recently served tenant first, then its least recently served type."""

    def __init__(self) -> None:
        self._turn = 0
        self._tenant_turn: dict[str, int] = {}
        self._type_turn: dict[JobType, int] = {}
        self.running: Counter[JobType] = Counter()

    def select(self, candidates: Sequence[Candidate]) -> JobType | None:
        if not candidates:
            return None
        chosen = min(candidates, key=self._rank).jobtype
        self._turn += 1
        self._tenant_turn[chosen.tenant] = self._type_turn[chosen] = self._turn
        _forget_oldest(self._tenant_turn)
        _forget_oldest(self._type_turn)
        return chosen

    def _rank(self, candidate: Candidate) -> tuple[int, int, bool, JobType]:
        jobtype = candidate.jobtype
        return (
            self._tenant_turn.get(jobtype.tenant, 0),
            self._type_turn.get(jobtype, 0),
            not candidate.warm,
            jobtype,
        )

    def jobs_started(self, jobtype: JobType, count: int) -> None:
        self.running[jobtype] += count

    def jobs_stopped(self, jobtype: JobType, count: int) -> None:
        self.running[jobtype] -= count
        if self.running[jobtype] <= 0:
            del self.running[jobtype]


def _forget_oldest(turns: dict[_Key, int]) -> None:
    """Drop the older half of too many: who was not served for so long is first in line anyway."""
    if len(turns) <= _REMEMBERED:
        return
    middle = sorted(turns.values())[len(turns) // 2]
    for key in [key for key, turn in turns.items() if turn <= middle]:
        del turns[key]
