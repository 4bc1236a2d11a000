"""The daemon: puts the parts together, starts and stops them in the right order.

    POST -> intake -> journal -> ingest -> store -> dispatch -> runner -> settle -> store

Each part is a module of its own; here is only who is told what, which chores there are, and how it
all ends: stop accepting, stop claiming, let running batches end within the grace, hand the others
back, write results, then close. Locks are renewed until the last result is written.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from queue_service import clock, scheduler
from queue_service.admin_key import admin_key, signing_key
from queue_service.api.app import make_app
from queue_service.api.services import Services
from queue_service.auth import Keys
from queue_service.chores import Chore, keep_doing
from queue_service.crew import Crew
from queue_service.dispatch import Dispatch, DispatchSettings
from queue_service.errors import StoreUnavailable
from queue_service.gather import Grouping
from queue_service.handler_cache import HandlerCache
from queue_service.ingest import Ingest
from queue_service.intake import Intake, IntakeLimits
from queue_service.journal.journals import Journals
from queue_service.journal.settings import JournalSettings
from queue_service.leases import Leases
from queue_service.options import Defaults
from queue_service.reading import Reader
from queue_service.settings import Settings
from queue_service.settle import Settler
from queue_service.store.base import Sysid
from queue_service.store.batches import MongoBatches
from queue_service.store.daemons import MongoDaemons
from queue_service.store.embedded import EmbeddedMongod, EmbeddedSettings
from queue_service.store.handlers import MongoHandlers
from queue_service.store.mongo import Mongo, UnusableStore
from queue_service.store.results import MongoResults
from queue_service.store.tenants import MongoTenants
from queue_service.verdict import RetryPolicy
from queue_service.waiters import Waiters
from runners.by_lang import Runners
from runners.http.guard import exceptions_of
from runners.http.runner import HttpRunner
from runners.http.settings import HttpSettings
from runners.http.signing import tenant_secret
from runners.process import ProcessRunner
from runners.settings import RunnerSettings

log = structlog.get_logger(__name__)

_CLOCK_SKEW_MAX_S = 5.0
_FLUSH_S = 5.0
_LAST_REQUESTS_S = 5.0
_KEEPALIVE_S = 75.0


class Daemon:
    """One process of Hearth. `run` serves until `stop` is set."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._accepting = False

    async def run(self, ready: Callable[[str, str], None], stop: asyncio.Event) -> None:
        """Serve. `ready` is told the URL and the sysid once work can be taken."""
        async with AsyncExitStack() as stack:
            await self._open(stack)
            crew = await stack.enter_async_context(Crew())
            for work in self._background(crew):
                crew.start(work)
            url = await self._listen(stack)
            self._accepting = True
            ready(url, str(self._sysid))
            await crew.until(stop)
            await self._drain()

    # Start.

    async def _open(self, stack: AsyncExitStack) -> None:
        """Make every part; what needs closing goes on the stack and is closed in reverse."""
        s = self._settings
        s.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        uri = s.mongo
        if not uri:
            embedded = EmbeddedMongod(embedded_settings(s))
            uri = (await stack.enter_async_context(embedded)).uri
        mongo = await stack.enter_async_context(Mongo(uri, s.database, s.store_timeout_s))
        await mongo.prepare()
        _check_clock((await mongo.now() - clock.now()).total_seconds())
        self._mongo = mongo
        self._sysid = await self._reserve(MongoDaemons(mongo), stack)
        journals = Journals(s.data / "journal", _journal_settings(s))
        self._journals = await stack.enter_async_context(journals)
        self._signing_key = s.http_signing_key or signing_key(s.data)
        http = HttpRunner(_http_settings(s, self._signing_key), lambda: clock.now().timestamp())
        self._runner = Runners([ProcessRunner(_runner_settings(s)), http])
        stack.push_async_callback(self._runner.close)
        if s.http_allow_private:
            log.warning("http.private_allowed", entries=list(s.http_allow_private))
        self._wire(mongo)

    async def _reserve(self, daemons: MongoDaemons, stack: AsyncExitStack) -> Sysid:
        info = {"host": socket.gethostname(), "pid": str(os.getpid())}
        sysid = await daemons.reserve(info, self._settings.sysid_lease_s)
        stack.push_async_callback(_release, daemons, sysid)
        log.info("daemon.sysid", sysid=str(sysid))
        return sysid

    def _wire(self, mongo: Mongo) -> None:
        """Join the parts, in the order in which a batch meets them."""
        s = self._settings
        defaults = Defaults.of(s)
        batches = MongoBatches(mongo, self._sysid)
        handlers, tenants = MongoHandlers(mongo), MongoTenants(mongo)
        cache, waiters = HandlerCache(handlers), Waiters()
        limits = IntakeLimits(
            body_bytes=s.body_max_bytes, line_bytes=s.line_max_bytes, lines=s.lines_max
        )
        intake = Intake(self._journals, limits)
        self._settler = Settler(batches, waiters, lambda new: self._dispatch.added(new))
        self._dispatch = Dispatch(
            batches,
            cache,
            scheduler.make(s.scheduler),
            self._runner,
            self._settler,
            _dispatch_settings(s, str(self._sysid)),
        )
        self._ingest = Ingest(
            self._journals,
            batches,
            self._dispatch,
            _grouping(s, defaults),
            s.ingest_bytes,
            is_urgent=lambda: bool(waiters),
        )
        self._leases = Leases(
            batches,
            MongoDaemons(mongo),
            self._dispatch,
            self._sysid,
            lease_s=s.lease_s,
            sysid_lease_s=s.sysid_lease_s,
            keep_done_s=s.keep_done_s,
        )
        self._services = Services(
            keys=Keys(tenants, s.admin_key or admin_key(s.data)),
            intake=intake,
            ingest=self._ingest,
            waiters=waiters,
            reader=Reader(MongoResults(mongo)),
            handlers=handlers,
            handler_cache=cache,
            tenants=tenants,
            runner=self._runner,
            signing_secret=lambda tenant: tenant_secret(self._signing_key, tenant),
            defaults=defaults,
            body_max_bytes=s.body_max_bytes,
            wait_max_s=s.wait_max_s,
            look_again=self._dispatch.look_again,
            health=self.health,
        )

    def _background(self, crew: Crew) -> list[Coroutine[Any, Any, None]]:
        loops = [self._settler.run(), self._dispatch.run(), self._ingest.run(crew)]
        return [*loops, *(keep_doing(chore) for chore in self.chores())]

    def chores(self) -> list[Chore]:
        """Every periodic activity of a daemon."""
        s = self._settings
        return [
            Chore(name="renew locks", every_s=s.renew_every_s, run=self._leases.renew_locks),
            Chore(name="renew sysid", every_s=s.renew_every_s, run=self._leases.renew_sysid),
            Chore(name="sweep", every_s=s.sweep_every_s, run=self._leases.sweep, jitter=0.5),
            Chore(name="fold counts", every_s=1.0, run=self._leases.fold, jitter=0.5),
            Chore(name="write marks", every_s=1.0, run=self._ingest.write_marks),
            Chore(name="purge", every_s=s.purge_every_s, run=self._leases.purge, jitter=0.1),
            Chore(name="reap contexts", every_s=5.0, run=self._reap),
        ]

    async def _reap(self) -> int:
        return self._runner.reap(clock.monotonic())

    async def _listen(self, stack: AsyncExitStack) -> str:
        s = self._settings
        self._web = web.AppRunner(
            make_app(self._services),
            access_log=None,
            keepalive_timeout=_KEEPALIVE_S,
            handle_signals=False,
            shutdown_timeout=_LAST_REQUESTS_S,
        )
        await self._web.setup()
        stack.push_async_callback(self._web.cleanup)
        site = web.TCPSite(self._web, s.host, s.port, backlog=1024)
        await site.start()
        host, port = self._web.addresses[0][:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    # While it runs.

    def health(self) -> dict[str, str]:
        """What /readyz says. Without the store, work is still taken into the journal."""
        journal = "ok" if self._journals.healthy else "failing"
        store = "ok" if self._mongo.answers else "away"
        status = "ok" if store == "ok" else "degraded"
        if not self._accepting or journal != "ok":
            status = "unavailable"
        return {
            "status": status,
            "journal": journal,
            "store": store,
            "sandbox": self._runner.describe(),
            "sysid": str(self._sysid),
        }

    # The end.

    async def _drain(self) -> None:
        s = self._settings
        self._accepting = False
        log.info("daemon.draining", held=len(self._dispatch.held))
        self._services.waiters.release()
        await self._web.cleanup()  # stops listening, lets requests under way end
        await self._dispatch.drain(s.drain_s)
        if not await self._ingest.flush(_FLUSH_S):
            log.warning("daemon.journal_left", unread_bytes=self._journals.unread_bytes)


async def _release(daemons: MongoDaemons, sysid: Sysid) -> None:
    try:
        await daemons.release(sysid)
    except StoreUnavailable as error:
        # Its lease runs out by itself, and nothing else depends on it.
        log.warning("daemon.not_released", sysid=str(sysid), reason=str(error))


def _check_clock(skew_s: float) -> None:
    if abs(skew_s) > _CLOCK_SKEW_MAX_S:
        raise UnusableStore(f"this host's clock and MongoDB's differ by {skew_s:.1f} s")


def embedded_settings(s: Settings) -> EmbeddedSettings:
    """Also for a database that is run alone."""
    return EmbeddedSettings(
        data=s.data, mongod=Path(s.mongod) if s.mongod else None, cache_gb=s.mongo_cache_gb
    )


def _journal_settings(s: Settings) -> JournalSettings:
    return JournalSettings(
        segment_bytes=s.segment_bytes,
        queue_bytes=s.journal_queue_bytes,
        open_files=s.journal_open_files,
    )


def _runner_settings(s: Settings) -> RunnerSettings:
    return RunnerSettings(
        max_contexts=s.contexts,
        idle_s=s.context_idle_s,
        max_jobs_per_context=s.context_jobs_max,
        memory_max_bytes=s.context_memory_bytes,
    )


def _http_settings(s: Settings, key: str) -> HttpSettings:
    return HttpSettings(
        signing_key=key,
        exceptions=exceptions_of(s.http_allow_private),
        denied_ports=frozenset({s.port} - {0}),
        connect_s=s.http_connect_s,
        requests_max=s.http_requests,
        tenant_requests_max=s.http_tenant_requests,
        host_requests_max=s.http_host_requests,
        answer_max_bytes=s.http_answer_bytes,
    )


def _grouping(s: Settings, defaults: Defaults) -> Grouping:
    return Grouping(batch_jobs=s.batch_jobs, batch_bytes=s.batch_bytes, defaults=defaults)


def _dispatch_settings(s: Settings, lock: str) -> DispatchSettings:
    retry = RetryPolicy(base_s=s.retry_base_s, cap_s=s.retry_cap_s, budget_s=s.budget_s)
    return DispatchSettings(lock=lock, lease_s=s.lease_s, poll_every_s=s.poll_every_s, retry=retry)
