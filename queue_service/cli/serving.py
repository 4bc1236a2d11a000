"""Running a daemon or the embedded database as this process: event loop, signals, exit codes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import structlog
import typer
import uvloop

from queue_service import telemetry
from queue_service.admin_key import AdminKeyUnusable
from queue_service.daemon import Daemon, embedded_settings
from queue_service.errors import StoreUnavailable
from queue_service.journal.journals import JournalsUnusable
from queue_service.leases import SysidLost
from queue_service.scheduler import UnknownScheduler
from queue_service.settings import Settings
from queue_service.store.embedded import (
    EmbeddedMongoUnavailable,
    run_alone,
)
from queue_service.store.mongo import UnusableStore

log = structlog.get_logger(__name__)

# What an operator can mend: shown as one line, without a trace.
_KNOWN = (
    AdminKeyUnusable,
    EmbeddedMongoUnavailable,
    JournalsUnusable,
    StoreUnavailable,
    SysidLost,
    UnknownScheduler,
    UnusableStore,
    OSError,
)


def serve(settings: Settings) -> int:
    """Run a daemon until SIGTERM or SIGINT; a second signal ends it at once."""

    def ready(url: str, sysid: str) -> None:
        sys.stdout.write(f"ready {url} sysid={sysid}\n")
        sys.stdout.flush()

    async def run(stop: asyncio.Event) -> None:
        await Daemon(settings).run(ready, stop)

    return _run(settings, run)


def serve_mongo(settings: Settings) -> int:
    """Run only the embedded database until a signal."""

    def ready(uri: str) -> None:
        sys.stdout.write(f"ready {uri}\n")
        sys.stdout.flush()

    async def run(stop: asyncio.Event) -> None:
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        await run_alone(embedded_settings(settings), ready, stop)

    return _run(settings, run)


def _run(settings: Settings, work: Any) -> int:
    telemetry.configure(settings.log_format)
    try:
        uvloop.run(_until_signalled(work))
    except _KNOWN as error:
        return _explain(error)
    except asyncio.CancelledError:
        return 1  # by a second signal; what was under way is taken up again later
    return 0


def _explain(error: BaseException) -> int:
    typer.echo(f"hearth: {error}", err=True)
    return 5


async def _until_signalled(work: Any) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop, asyncio.current_task())
    coroutine: Coroutine[Any, Any, None] = work(stop)
    await coroutine


def _on_signal(stop: asyncio.Event, main: asyncio.Task[None] | None) -> None:
    if stop.is_set() and main is not None:
        log.warning("daemon.second_signal")
        main.cancel()
    stop.set()
