"""Dispatch: keeps the runner busy with what the scheduler chooses.

It holds a picture of what waits (told by ingest and settle, corrected by asking the store), asks
the scheduler for a type, claims a batch of it and sees it through: run, decide, settle. A batch
that comes fresh out of the journal it may run without a detour through the store. It does no I/O
of its own and knows neither MongoDB nor processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Collection, Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import structlog

from handlers.definition import Handler
from handlers.names import JobType
from queue_service import clock
from queue_service.batch import Batch, NewBatch, Settlement, codes_of, taken
from queue_service.errors import StoreUnavailable
from queue_service.handler_cache import HandlerCache
from queue_service.insist import insist
from queue_service.scheduler.base import Candidate, Scheduler
from queue_service.settle import Settler
from queue_service.store.base import BatchStore
from queue_service.verdict import (
    RetryPolicy,
    decide,
    must_begin_alone,
    never_handled,
    shelve,
)
from runners.base import Call, Outcome, Runner

log = structlog.get_logger(__name__)

_HELD_MAX = 64
# A batch that is run straight from the journal is put into the store after this, ended or not, so
# that another daemon could take it over.
_UNSTORED_MAX_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSettings:
    lock: str
    lease_s: float
    poll_every_s: float
    retry: RetryPolicy


@dataclass(slots=True)
class _Backlog:
    """What is believed to wait of one type; claims that were begun are already taken off.

    `news` counts how often more was heard of, so that a claim which found nothing does not undo
    what came after it.
    """

    batches: int
    jobs: int
    oldest: datetime
    news: int = 0


@dataclass(slots=True)
class _Held:
    """A batch in the hands of this daemon: running, or ended but not yet written.

    `unstored` while the store knows nothing of it.
    """

    batch: Batch
    unstored: NewBatch | None = None
    running: bool = False


class Dispatch:
    """Starts batches while there is room, and holds them until they are settled."""

    def __init__(
        self,
        store: BatchStore,
        handlers: HandlerCache,
        scheduler: Scheduler,
        runner: Runner,
        settler: Settler,
        settings: DispatchSettings,
    ) -> None:
        self._store = store
        self._handlers = handlers
        self._scheduler = scheduler
        self._runner = runner
        self._settler = settler
        self._settings = settings
        self._rng = random.Random()  # noqa: S311
        self._waiting: dict[JobType, _Backlog] = {}
        self._look_again_at = 0.0
        self._wake = asyncio.Event()
        self._starting = 0
        self._tasks: dict[asyncio.Task[None], _Held | None] = {}
        self._expiring: set[JobType] = set()
        self._draining = False

    # What others tell: ingest and settle of new work, leases of lost work, the API of handlers.

    def added(self, batches: Collection[NewBatch]) -> None:
        """Batches were stored; those that are due can be started without asking the store."""
        now = clock.now()
        for batch in batches:
            _log_entered(batch)
            if not batch.is_due(now):
                continue
            backlog = self._waiting.get(batch.jobtype)
            if backlog is None:
                self._waiting[batch.jobtype] = _Backlog(1, batch.count, batch.dt)
            else:
                backlog.batches += 1
                backlog.jobs += batch.count
                backlog.news += 1
        self._wake.set()

    async def take(self, new: NewBatch) -> Awaitable[bool] | None:
        """Run a batch out of the journal, if there is room for it that nobody else waits for."""
        if self._draining or len(self._tasks) >= _HELD_MAX or not new.is_due(clock.now()):
            return None
        try:
            handler = await self._handlers.find(new.jobtype)
        except StoreUnavailable:
            return None
        if handler is None or self._someone_waits() or not self._has_room(handler):
            return None
        _log_entered(new)
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._starting += 1
        self._start(self._serve_unstored(new, handler, stored))
        return stored

    def look_again(self) -> None:
        """Something changed that only the store knows."""
        self._look_again_at = 0.0
        self._wake.set()

    @property
    def held(self) -> list[Batch]:
        """Every batch under this daemon's lock in the store: running, or ended but not written."""
        return [held.batch for held in self._tasks.values() if held and not held.unstored]

    def abandon(self, ids: Collection[str]) -> None:
        """Kill runs whose batches were taken over; their results count for nothing."""
        for task, held in self._tasks.items():
            # One that has ended is settled as ever: its fence tells it what happened.
            if held and held.running and held.batch.fence.id in ids:
                log.warning("batch.lost", **_about(held.batch))
                task.cancel()

    # The loop.

    async def run(self) -> None:
        """Start batches until drained or cancelled."""
        while not self._draining:
            self._wake.clear()
            try:
                started = await self._step()
            except StoreUnavailable as error:
                log.warning("dispatch.store_away", reason=str(error))
                started = False
            if not started:
                await self._rest()

    async def _step(self) -> bool:
        """Start one batch of the type the scheduler chooses; False when nothing could start."""
        if len(self._tasks) >= _HELD_MAX:
            return False  # a slow store must slow claims, not fill memory
        await self._look()
        # A copy, because more may be heard of while we wait for an answer.
        handlers = {jobtype: await self._handlers.find(jobtype) for jobtype in list(self._waiting)}
        jobtype = self._scheduler.select(self._candidates(handlers))
        handler = handlers[jobtype] if jobtype else None
        if jobtype is None or handler is None:
            return False
        backlog = self._waiting[jobtype]
        backlog.batches -= 1
        self._starting += 1
        self._start(self._serve(jobtype, handler, backlog))
        return True

    async def _look(self) -> None:
        """Ask the store what waits, if that was long ago."""
        if clock.monotonic() < self._look_again_at:
            return
        self._look_again_at = clock.monotonic() + self._settings.poll_every_s
        self._waiting = {
            found.jobtype: _Backlog(found.batches, found.jobs, found.oldest)
            for found in await self._store.waiting()
        }
        for jobtype in list(self._waiting):
            if await self._handlers.find(jobtype) is None and jobtype not in self._expiring:
                self._expiring.add(jobtype)
                self._start(self._expire(jobtype))

    def _candidates(self, handlers: Mapping[JobType, Handler | None]) -> list[Candidate]:
        """The types that have work, a handler and room."""
        warm = self._runner.warm()
        return [
            Candidate(
                jobtype=jobtype,
                jobs=backlog.jobs,
                oldest=backlog.oldest,
                warm=handler.key in warm,
            )
            for jobtype, backlog in self._waiting.items()
            if backlog.batches > 0
            and (handler := handlers.get(jobtype)) is not None
            and self._has_room(handler)
        ]

    def _has_room(self, handler: Handler) -> bool:
        return self._runner.room(handler) > self._starting

    def _someone_waits(self) -> bool:
        return any(
            backlog.batches > 0 and self._handlers.is_known(jobtype)
            for jobtype, backlog in self._waiting.items()
        )

    async def _rest(self) -> None:
        """Wait for a hint, at most until the store is to be looked at again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.poll_every_s):
                await self._wake.wait()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        held = self._tasks.pop(task)
        self._wake.set()
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, StoreUnavailable):
            log.warning("dispatch.store_away", reason=str(error))
        elif error is not None:
            name = held.batch.fence.id if held else None
            log.error("dispatch.failed", batch=name, exc_info=error)

    # One batch, from claim to settlement.

    async def _serve(self, jobtype: JobType, handler: Handler, backlog: _Backlog) -> None:
        """A batch out of the store."""
        news = backlog.news
        try:
            batch = await self._store.claim(jobtype, self._settings.lease_s)
        finally:
            self._starting -= 1
        if batch is None:
            if backlog.news == news:
                backlog.batches = backlog.jobs = 0
            return
        backlog.jobs = max(0, backlog.jobs - batch.count)
        held = self._hold(_Held(batch))
        shelved = shelve(batch, now=clock.now(), policy=self._settings.retry, rng=self._rng)
        if shelved is not None:
            await self._write(held, shelved)
            return
        await self._settle(held, handler, await self._run(held, handler))

    async def _serve_unstored(
        self, new: NewBatch, handler: Handler, stored: asyncio.Future[bool]
    ) -> None:
        """A batch out of the journal: one write in all, if it ends soon and well."""
        self._starting -= 1
        held = self._hold(_Held(taken(new, self._settings.lock, clock.now()), new))
        running = asyncio.create_task(self._run(held, handler))
        try:
            await asyncio.wait({running}, timeout=_UNSTORED_MAX_S)
            if not running.done():
                await self._put_held(held, new)
                stored.set_result(True)
            await self._settle(held, handler, await running)
        finally:
            running.cancel()
            if not stored.done():
                stored.set_result(held.unstored is None)

    async def _run(self, held: _Held, handler: Handler) -> Outcome:
        batch = held.batch
        log.info("batch.running", **_about(batch), handler=handler.version)
        self._scheduler.jobs_started(batch.jobtype, batch.count)
        held.running = True
        try:
            return await self._runner.run(self._call(batch, handler))
        finally:
            held.running = False
            self._scheduler.jobs_stopped(batch.jobtype, batch.count)
            self._wake.set()

    async def _settle(self, held: _Held, handler: Handler, outcome: Outcome) -> None:
        settlement = decide(
            held.batch,
            outcome,
            version=handler.version,
            now=clock.now(),
            policy=self._settings.retry,
            rng=self._rng,
        )
        if held.unstored and (settlement.finished is None or settlement.successors):
            # Only what has ended whole is inserted in its final state.
            await self._put_held(held, held.unstored)
        await self._write(held, replace(settlement, unstored=held.unstored))

    async def _put_held(self, held: _Held, new: NewBatch) -> None:
        """Put a batch into the store in the state it is in: locked by this daemon."""
        fence, lease_s = held.batch.fence, self._settings.lease_s
        await insist("add_held", lambda: self._store.add_held(new, fence, lease_s))
        held.unstored = None

    async def _write(self, held: _Held, settlement: Settlement) -> None:
        done = settlement.finished
        took_effect = await self._settler.settle(settlement)
        held.unstored = None
        if took_effect:
            codes = codes_of(done) if done else {}
            ended = done.count if done else 0
            log.info("batch.completed", **_about(held.batch), ended=ended, **codes)

    def _hold(self, held: _Held) -> _Held:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - only ever called inside one of our tasks
        self._tasks[task] = held
        return held

    def _call(self, batch: Batch, handler: Handler) -> Call:
        return Call(
            handler=handler,
            data=batch.data,
            count=batch.count,
            spans=batch.spans,
            attempt=batch.attempt,
            job_timeout_s=batch.options.timeout_s,
            budget_s=0.0 if must_begin_alone(batch) else self._settings.retry.budget_s,
            careful=batch.careful,
        )

    async def _expire(self, jobtype: JobType) -> None:
        """End the batches of a type without handler whose window has closed."""
        try:
            while batch := await self._store.claim_expired(jobtype, self._settings.lease_s):
                held = self._hold(_Held(batch))
                settlement = never_handled(
                    batch, now=clock.now(), policy=self._settings.retry, rng=self._rng
                )
                await self._write(held, settlement)
        finally:
            self._expiring.discard(jobtype)

    # The end.

    async def drain(self, grace_s: float) -> None:
        """Claim nothing more; let batches end within the grace; hand the others back unharmed."""
        self._draining = True
        self._wake.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        await self._runner.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)


def _log_entered(batch: NewBatch) -> None:
    log.info(
        "batch.entered",
        batch=batch.id,
        jobtype=str(batch.jobtype),
        jobs=batch.count,
        attempt=batch.attempt,
    )


def _about(batch: Batch) -> dict[str, Any]:
    return {
        "batch": batch.fence.id,
        "jobtype": str(batch.jobtype),
        "jobs": batch.count,
        "attempt": batch.attempt,
    }
