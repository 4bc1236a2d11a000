"""Requests that wait for all jobs of a post to end.

Told by `settle` about what this daemon finished; what other daemons finished is the caller's to
look up in the store now and then. Holds results only of posts that somebody waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from queue_service.batch import Finished
from queue_service.records import ResultRecord, final_records


class Waiter:
    """One post that is waited for. `over` is set when every job of it has ended, or never will
    while this daemon lives; `complete` tells the two apart."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.records: dict[int, ResultRecord] = {}
        self.over = asyncio.Event()

    @property
    def complete(self) -> bool:
        return len(self.records) >= self.count

    def add(self, done: Finished, post: str) -> None:
        for record in final_records(done, post=post):
            self.records[record.line] = record
        self.check()

    def check(self) -> None:
        if self.complete:
            self.over.set()


class Waiters:
    """All posts that are waited for."""

    def __init__(self) -> None:
        self._by_post: dict[str, Waiter] = {}

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._by_post)

    @contextmanager
    def watch(self, post: str, count: int) -> Iterator[Waiter]:
        waiter = self._by_post[post] = Waiter(count)
        try:
            yield waiter
        finally:
            del self._by_post[post]

    def release(self) -> None:
        """Let everybody go: the daemon is about to stop."""
        for waiter in self._by_post.values():
            waiter.over.set()

    def finished(self, done: Finished) -> None:
        """Tell whoever waits. Costs nothing while nobody does."""
        if not self._by_post:
            return
        for post in {span.post for span in done.spans} & self._by_post.keys():
            self._by_post[post].add(done, post)
