"""Dispatch: keeps the runner busy with what the scheduler chooses.

It holds a picture of what waits (told by ingest and settle, corrected by asking the store), asks
the scheduler for a type, claims a batch of it and sees it through: run, decide, settle. It does no
I/O of its own and knows neither MongoDB nor processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from handlers.definition import Handler
from handlers.names import JobType
from queue_service import clock
from queue_service.batch import Batch, NewBatch, Settlement, codes_of
from queue_service.errors import StoreUnavailable
from queue_service.handler_cache import HandlerCache
from queue_service.scheduler.base import Candidate, Scheduler
from queue_service.settle import Settler
from queue_service.store.base import BatchStore
from queue_service.verdict import RetryPolicy, decide, never_handled
from runners.base import Call, Runner

log = structlog.get_logger(__name__)

_HELD_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSettings:
    lease_s: float
    poll_every_s: float
    retry: RetryPolicy


@dataclass(slots=True)
class _Backlog:
    """What is believed to wait of one type; claims that were begun are already taken off."""

    batches: int
    jobs: int
    oldest: datetime


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
        self._claiming = 0
        self._tasks: dict[asyncio.Task[None], Batch | None] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._expiring: set[JobType] = set()
        self._draining = False

    # What others tell: ingest and settle of new work, leases of lost work, the API of handlers.

    def added(self, batches: Collection[NewBatch]) -> None:
        """Batches were stored; those that are due can be started without asking the store."""
        now = clock.now()
        for batch in batches:
            if batch.dt > now:
                continue
            backlog = self._waiting.get(batch.jobtype)
            if backlog is None:
                self._waiting[batch.jobtype] = _Backlog(1, batch.count, batch.dt)
            else:
                backlog.batches += 1
                backlog.jobs += batch.count
        self._wake.set()

    def look_again(self) -> None:
        """Something changed that only the store knows."""
        self._look_again_at = 0.0
        self._wake.set()

    @property
    def held(self) -> list[Batch]:
        """Every batch under this daemon's lock: running, or ended but not yet written."""
        return [batch for batch in self._tasks.values() if batch is not None]

    def abandon(self, ids: Collection[str]) -> None:
        """Kill runs whose batches were taken over; their results count for nothing."""
        for task, batch in self._tasks.items():
            # One that has ended is settled as ever: its fence tells it what happened.
            if batch is not None and batch.fence.id in ids and task in self._running:
                log.warning("batch.lost", batch=batch.fence.id, jobtype=str(batch.jobtype))
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
        handlers = {jobtype: await self._handlers.find(jobtype) for jobtype in self._waiting}
        jobtype = self._scheduler.select(self._candidates(handlers))
        handler = handlers[jobtype] if jobtype else None
        if jobtype is None or handler is None:
            return False
        self._waiting[jobtype].batches -= 1
        self._claiming += 1
        self._start(self._serve(jobtype, handler))
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
        for jobtype in self._waiting:
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
            and self._runner.room(handler) > self._claiming
        ]

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
        batch = self._tasks.pop(task)
        self._wake.set()
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, StoreUnavailable):
            log.warning("dispatch.store_away", reason=str(error))
        elif error is not None:
            name = batch.fence.id if batch else None
            log.error("dispatch.failed", batch=name, exc_info=error)

    # One batch, from claim to settlement.

    async def _serve(self, jobtype: JobType, handler: Handler) -> None:
        try:
            batch = await self._store.claim(jobtype, self._settings.lease_s)
        finally:
            self._claiming -= 1
        if batch is None:
            self._waiting.pop(jobtype, None)
            return
        task = self._hold(batch)
        log.info("batch.running", **_about(batch), handler=handler.version)
        self._scheduler.jobs_started(jobtype, batch.count)
        self._running.add(task)
        try:
            outcome = await self._runner.run(self._call(batch, handler))
        finally:
            self._running.discard(task)
            self._scheduler.jobs_stopped(jobtype, batch.count)
            self._wake.set()
        settlement = decide(
            batch,
            outcome,
            version=handler.version,
            now=clock.now(),
            policy=self._settings.retry,
            rng=self._rng,
        )
        await self._settle(batch, settlement)

    def _hold(self, batch: Batch) -> asyncio.Task[None]:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - only ever called inside one of our tasks
        self._tasks[task] = batch
        backlog = self._waiting.get(batch.jobtype)
        if backlog:
            backlog.jobs = max(0, backlog.jobs - batch.count)
        return task

    def _call(self, batch: Batch, handler: Handler) -> Call:
        return Call(
            handler=handler,
            data=batch.data,
            count=batch.count,
            spans=batch.spans,
            attempt=batch.attempt,
            job_timeout_s=batch.options.timeout_s,
            budget_s=self._settings.retry.budget_s,
            careful=batch.careful,
        )

    async def _settle(self, batch: Batch, settlement: Settlement) -> None:
        done = settlement.finished
        if await self._settler.settle(batch, settlement):
            codes = codes_of(done) if done else {}
            log.info("batch.completed", **_about(batch), ended=done.count if done else 0, **codes)

    async def _expire(self, jobtype: JobType) -> None:
        """End the batches of a type without handler whose window has closed."""
        try:
            while batch := await self._store.claim_expired(jobtype, self._settings.lease_s):
                self._hold(batch)
                settlement = never_handled(
                    batch, now=clock.now(), policy=self._settings.retry, rng=self._rng
                )
                await self._settle(batch, settlement)
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


def _about(batch: Batch) -> dict[str, Any]:
    return {
        "batch": batch.fence.id,
        "jobtype": str(batch.jobtype),
        "jobs": batch.count,
        "attempt": batch.attempt,
    }
