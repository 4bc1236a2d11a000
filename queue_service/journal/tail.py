"""What was just made durable, kept in memory until it is committed.

Ingest usually reads a record milliseconds after it was written; from here it gets it without a
thread, the file or a checksum. Bounded over all tenants: what does not fit is read from disk, and
nothing depends on its being here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from queue_service.journal.record import Record


class Kept(NamedTuple):
    """A record and where it lies in its segment."""

    record: Record
    start: int
    end: int
    seq: int


class TailBudget:
    """How many bytes all tails of a daemon may hold."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def take(self, size: int) -> bool:
        if size > self._left:
            return False
        self._left -= size
        return True

    def give_back(self, size: int) -> None:
        self._left += size


class Tail:
    """The latest records of one segment, as far as the budget allows."""

    def __init__(self, budget: TailBudget) -> None:
        self._budget = budget
        self._kept: deque[Kept] = deque()

    def add(self, written: Sequence[Kept]) -> None:
        size = written[-1].end - written[0].start
        if self._budget.take(size):
            self._kept.extend(written)

    def read(self, start: int, end: int, max_records: int, max_bytes: int) -> list[Kept]:
        """Neighbouring records from `start` on, within all limits but at least one; else none."""
        found: list[Kept] = []
        at = start
        for kept in self._kept:
            if kept.start < start:
                continue
            if kept.start != at or kept.end > end or len(found) == max_records:
                break
            if found and kept.end - start > max_bytes:
                break
            found.append(kept)
            at = kept.end
        return found

    def forget(self, point: int) -> None:
        """Let go of what lies before `point`."""
        while self._kept and self._kept[0].start < point:
            kept = self._kept.popleft()
            self._budget.give_back(kept.end - kept.start)
