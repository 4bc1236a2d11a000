"""Settle writes in groups and loses nothing; those who wait are told; insisting and chores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from queue_service import clock
from queue_service.batch import Batch, Finished, NewBatch, Settlement, taken
from queue_service.chores import Chore, keep_doing
from queue_service.errors import StoreUnavailable
from queue_service.insist import insist
from queue_service.settle import Settler
from queue_service.waiters import Waiters
from runners.base import Span
from tests.test_dispatch import new
from tests.waiting import eventually


class Store:
    def __init__(self) -> None:
        self.groups: list[int] = []
        self.stale: set[str] = set()
        self.failures = 0
        self.gate = asyncio.Event()

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        self.groups.append(len(settlements))
        return [one.fence.id not in self.stale for one in settlements]


def ended(batch: Batch, successors: tuple[NewBatch, ...] = ()) -> Settlement:
    finished = Finished(
        id=batch.fence.id,
        jobtype=batch.jobtype,
        spans=batch.spans,
        count=batch.count,
        data=batch.data,
        attempt=1,
        ok=batch.count,
        bad=(),
        out=b"7\n" * batch.count,
        log=b"",
        done_dt=clock.now(),
        create_dt=clock.now(),
        run_s=0.0,
        cpu_s=0.0,
        wait_s=0.0,
        handler_version=1,
    )
    return Settlement(fence=batch.fence, finished=finished, successors=successors)


class Bench:
    def __init__(self) -> None:
        self.store, self.waiters = Store(), Waiters()
        self.added: list[NewBatch] = []
        store: Any = self.store
        self.settler = Settler(store, self.waiters, self.added.extend)

    def settle(self, post: str, successors: tuple[NewBatch, ...] = ()) -> asyncio.Task[bool]:
        batch = taken(new(post), "s1.1", clock.now())
        return asyncio.create_task(self.settler.settle(ended(batch, successors)))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    task = asyncio.create_task(made.settler.run())
    yield made
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_what_ends_while_a_write_is_under_way_shares_the_next(bench: Bench) -> None:
    first = bench.settle("p0")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [bench.settle(f"p{n}") for n in range(1, 10)]
    await asyncio.sleep(0)
    bench.store.gate.set()
    assert await asyncio.gather(first, *others) == [True] * 10
    assert bench.store.groups == [1, 9]


async def test_a_store_that_is_away_loses_no_result(bench: Bench) -> None:
    bench.store.failures = 2
    bench.store.gate.set()
    assert await bench.settle("p0")
    assert bench.store.groups == [1]


@pytest.mark.checklist("M70")
async def test_a_stale_result_is_counted_and_told_to_nobody(bench: Bench) -> None:
    bench.store.gate.set()
    bench.store.stale = {new("late").id}
    with bench.waiters.watch("late", 2) as waiter:
        assert not await bench.settle("late", successors=(new("again"),))
        assert not waiter.over.is_set()
    assert bench.settler.stale == 1
    assert bench.added == []


async def test_those_who_wait_are_told_when_all_is_written(bench: Bench) -> None:
    with bench.waiters.watch("p0", 2) as waiter:
        settled = bench.settle("p0", successors=(new("again"),))
        await asyncio.sleep(0)
        assert not waiter.over.is_set()
        bench.store.gate.set()
        assert await settled
        assert waiter.complete
        assert [waiter.records[line].value for line in (0, 1)] == [b"7", b"7"]
    assert [batch.id for batch in bench.added] == [new("again").id]


async def test_a_daemon_that_stops_lets_those_who_wait_go() -> None:
    waiters = Waiters()
    with waiters.watch("p0", 2) as waiter:
        waiters.release()
        assert waiter.over.is_set()
        assert not waiter.complete


def test_only_lines_of_the_post_that_is_waited_for_count() -> None:
    waiters = Waiters()
    batch = taken(new("p0"), "s1.1", clock.now())
    finished = ended(batch).finished
    assert finished is not None
    with waiters.watch("other", 1) as waiter:
        waiters.finished(finished)
        assert waiter.records == {}
    assert batch.spans == (Span(post="p0", first=0, count=2),)


async def test_insisting_repeats_until_the_store_answers() -> None:
    answers = [StoreUnavailable("1"), StoreUnavailable("2"), None]

    async def work() -> str:
        problem = answers.pop(0)
        if problem:
            raise problem
        return "done"

    assert await insist("test", work) == "done"
    assert answers == []


async def test_insisting_lets_real_mistakes_through() -> None:
    async def work() -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await insist("test", work)


async def test_a_chore_goes_on_while_the_store_is_away_and_ends_with_a_mistake() -> None:
    problems: list[Exception] = [StoreUnavailable("1"), StoreUnavailable("2"), ValueError("a bug")]

    async def run() -> int:
        raise problems.pop(0)

    doing = asyncio.create_task(keep_doing(Chore(name="test", every_s=0.001, run=run)))
    await eventually(doing.done)
    with pytest.raises(ValueError, match="a bug"):
        await doing
    assert problems == []
