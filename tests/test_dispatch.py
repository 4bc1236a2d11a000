"""Dispatch: which batches it starts, what it holds, and how a batch out of the journal fares.

Store and runner are played by the test; the settler is the real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from handlers.definition import Definition, Handler
from handlers.names import JobType
from queue_service import clock
from queue_service.batch import Batch, Fence, NewBatch, Settlement, taken
from queue_service.dispatch import Dispatch, DispatchSettings
from queue_service.errors import StoreUnavailable
from queue_service.handler_cache import HandlerCache
from queue_service.options import Defaults
from queue_service.scheduler import make
from queue_service.settings import Settings
from queue_service.settle import Settler
from queue_service.store.base import Waiting
from queue_service.verdict import RetryPolicy
from queue_service.waiters import Waiters
from runners.base import Bad, Call, Outcome, Span, StopReason, nothing_done
from tests.waiting import eventually

ACME = JobType("acme", "resize")
OTHER = JobType("other", "crop")
NOBODY = JobType("acme", "unhandled")
OPTIONS = Defaults.of(Settings()).options


def new(post: str = "p1", jobtype: JobType = ACME, dt: datetime | None = None) -> NewBatch:
    return NewBatch(
        jobtype=jobtype,
        spans=(Span(post=post, first=0, count=2),),
        count=2,
        data=b"1\n2\n",
        dt=dt or clock.now(),
        attempt=1,
        options=OPTIONS,
        create_dt=clock.now(),
    )


def ok(call: Call) -> Outcome:
    return Outcome(done=call.count, ok=call.count, bad=(), out=b"0\n" * call.count, stop=None)


class Store:
    """What dispatch and settle use of a BatchStore, with everything written down."""

    def __init__(self) -> None:
        self.ready: list[Batch] = []
        self.settled: list[Settlement] = []
        self.put_held: list[str] = []
        self.away = False

    def _ask(self) -> None:
        if self.away:
            raise StoreUnavailable("away")

    async def waiting(self) -> list[Waiting]:
        self._ask()
        types = {batch.jobtype for batch in self.ready}
        return [
            Waiting(jobtype=t, batches=1, jobs=2, oldest=datetime(2026, 1, 1, tzinfo=UTC))
            for t in sorted(types)
        ]

    async def claim(self, jobtype: JobType, lease_s: float) -> Batch | None:
        self._ask()
        for batch in self.ready:
            if batch.jobtype == jobtype:
                self.ready.remove(batch)
                return batch
        return None

    async def claim_expired(self, jobtype: JobType, lease_s: float) -> Batch | None:
        return None

    async def add_held(self, new: NewBatch, fence: Fence, lease_s: float) -> None:
        self._ask()
        self.put_held.append(new.id)

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        self._ask()
        self.settled += settlements
        return [True] * len(settlements)


class Runner:
    """Answers as `reply` says; holds calls while `gate` is closed."""

    langs = ("python",)

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.free = 2
        self.gate = asyncio.Event()
        self.gate.set()
        self.reply = ok
        self.cancelled = 0

    async def run(self, call: Call) -> Outcome:
        self.calls.append(call)
        self.free -= 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.free += 1
        return self.reply(call)

    def room(self, handler: Handler) -> int:
        return self.free

    def warm(self) -> Collection[tuple[str, str, str]]:
        return ()

    async def close(self) -> None:
        self.reply = lambda call: nothing_done(StopReason.CLOSED, "closing")
        self.gate.set()


class Handlers:
    async def get(self, tenant: str, name: str, version: int | None = None) -> Handler | None:
        if name == NOBODY.type:
            return None
        definition = Definition(lang="python", body="return payload")
        return Handler(tenant=tenant, name=name, version=1, definition=definition)


class Bench:
    """One dispatch with its surroundings."""

    def __init__(self) -> None:
        self.store, self.runner = Store(), Runner()
        store: Any = self.store
        handlers: Any = Handlers()
        runner: Any = self.runner
        self.settler = Settler(store, Waiters(), lambda batches: self.dispatch.added(batches))
        self.dispatch = Dispatch(
            store,
            HandlerCache(handlers),
            make("round-robin"),
            runner,
            self.settler,
            DispatchSettings(
                lock="s1.1",
                lease_s=30,
                poll_every_s=0.05,
                retry=RetryPolicy(base_s=1, cap_s=10, budget_s=1),
            ),
        )

    async def take(self, batch: NewBatch) -> Awaitable[bool] | None:
        return await self.dispatch.take(batch)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    async with running(made.settler.run()):
        yield made


@asynccontextmanager
async def running(*work: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_a_fresh_batch_that_ends_soon_is_written_once(bench: Bench) -> None:
    stored = await bench.take(new())
    assert stored is not None
    assert await stored
    (settlement,) = bench.store.settled
    assert settlement.unstored is not None
    assert settlement.finished is not None
    assert bench.store.put_held == []


async def test_a_fresh_batch_that_takes_longer_is_put_into_the_store_meanwhile(
    bench: Bench,
) -> None:
    bench.runner.gate.clear()
    stored = await bench.take(new())
    assert stored is not None
    assert bench.dispatch.held == []  # the store does not know it: there is no lease to renew
    assert await stored
    assert bench.store.put_held == [new().id]
    assert [batch.fence.id for batch in bench.dispatch.held] == [new().id]
    bench.runner.gate.set()
    await eventually(lambda: len(bench.store.settled) == 1)
    assert bench.store.settled[0].unstored is None


@pytest.mark.parametrize("reply", ["some are tried again", "nothing was done"])
async def test_a_fresh_batch_that_did_not_end_whole_is_in_the_store_before_its_end_is_written(
    bench: Bench, reply: str
) -> None:
    def retried(call: Call) -> Outcome:
        return Outcome(done=2, ok=1, bad=(Bad(1, 500),), out=b"0\n0\n", stop=None)

    def untouched(call: Call) -> Outcome:
        return nothing_done(StopReason.DIED, "killed")

    bench.runner.reply = retried if reply.startswith("some") else untouched
    stored = await bench.take(new())
    assert stored is not None
    assert await stored
    assert bench.store.put_held == [new().id]
    assert bench.store.settled[0].unstored is None


@pytest.mark.parametrize(
    "why", ["no room", "somebody waits", "not due", "no handler", "draining", "store away"]
)
async def test_a_fresh_batch_is_left_to_the_store(bench: Bench, why: str) -> None:
    batch = new()
    if why == "no room":
        bench.runner.free = 0
    elif why == "somebody waits":
        await bench.take(new("warm-up", OTHER))  # so that its handler is known
        bench.dispatch.added([new("p0", OTHER)])
    elif why == "not due":
        batch = new(dt=clock.now() + timedelta(hours=1))
    elif why == "no handler":
        batch = new(jobtype=NOBODY)
    elif why == "draining":
        await bench.dispatch.drain(1)
    else:
        bench.store.away = True
        bench.dispatch._handlers._store.get = _away  # type: ignore[method-assign]
    assert await bench.take(batch) is None


async def _away(*_: object) -> Handler | None:
    raise StoreUnavailable("away")


async def test_no_more_is_taken_than_there_is_room_for(bench: Bench) -> None:
    bench.runner.gate.clear()
    taken_up = [await bench.take(new(f"p{n}")) for n in range(4)]
    assert [one is not None for one in taken_up] == [True, True, False, False]


async def test_a_type_without_handler_holds_nobody_up(bench: Bench) -> None:
    bench.dispatch.added([new("p0", NOBODY)])
    assert await bench.take(new()) is not None


@pytest.mark.checklist("M81", "M91", "M92")
async def test_waiting_batches_are_claimed_run_and_settled_once(bench: Bench) -> None:
    bench.store.ready = [taken(new(f"p{n}"), "s1.1", clock.now()) for n in range(5)]
    async with running(bench.dispatch.run()):
        await eventually(lambda: len(bench.store.settled) == 5)
    assert len(bench.runner.calls) == 5
    assert bench.dispatch.held == []


@pytest.mark.checklist("M91")
async def test_what_runs_is_held_until_it_is_written(bench: Bench) -> None:
    bench.store.ready = [taken(new(), "s1.1", clock.now())]
    bench.runner.gate.clear()
    async with running(bench.dispatch.run()):
        await eventually(lambda: len(bench.dispatch.held) == 1)
        bench.store.away = True
        bench.runner.gate.set()
        await eventually(lambda: bench.runner.free == 2)
        assert len(bench.dispatch.held) == 1  # ended, but not written: its lease is renewed
        bench.store.away = False
        await eventually(lambda: bench.dispatch.held == [])


async def test_a_run_whose_batch_was_taken_over_is_killed(bench: Bench) -> None:
    bench.store.ready = [taken(new(), "s1.1", clock.now())]
    bench.runner.gate.clear()
    async with running(bench.dispatch.run()):
        await eventually(lambda: len(bench.dispatch.held) == 1)
        bench.dispatch.abandon({new().id})
        await eventually(lambda: bench.runner.cancelled == 1)
    assert bench.store.settled == []


async def test_draining_hands_back_what_does_not_end_in_time(bench: Bench) -> None:
    bench.store.ready = [taken(new(), "s1.1", clock.now())]
    bench.runner.gate.clear()
    async with running(bench.dispatch.run()):
        await eventually(lambda: len(bench.dispatch.held) == 1)
        fresh = await bench.take(new("fresh"))
        await bench.dispatch.drain(0.05)
    assert fresh is not None
    assert await fresh
    assert [one.finished for one in bench.store.settled] == [None, None]
    assert bench.dispatch.held == []


async def test_a_claim_that_found_nothing_does_not_undo_later_news(bench: Bench) -> None:
    """The store is asked, answers 'nothing', and meanwhile a batch is stored."""
    claimed = asyncio.Event()
    answer = asyncio.Event()
    real = bench.store.claim

    async def slow(jobtype: JobType, lease_s: float) -> Batch | None:
        if claimed.is_set():
            return await real(jobtype, lease_s)
        claimed.set()
        await answer.wait()
        return None

    bench.store.claim = slow  # type: ignore[method-assign]
    bench.dispatch._look_again_at = clock.monotonic() + 3600  # only what is told counts
    async with running(bench.dispatch.run()):
        bench.dispatch.added([new("gone")])
        await claimed.wait()
        bench.store.ready = [taken(new("late"), "s1.1", clock.now())]
        bench.dispatch.added([new("late")])
        answer.set()
        await eventually(lambda: len(bench.store.settled) == 1)
