"""The embedded mongod: a single-member replica set on a private unix socket, kept alive.

It starts the server, makes it primary and hands out its URI. It stores nothing itself, and it is
not made for production: see docs/embedded-mongod.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote_plus

from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure, PyMongoError

from queue_service.store.mongod_binary import Binary, EmbeddedMongoUnavailable, advisories, find
from queue_service.store.mongod_home import MongodHome
from runners.supervise import Helper, HelperExited, Supervisor, end_orphan

__all__ = [
    "EmbeddedMongoUnavailable",
    "EmbeddedMongod",
    "EmbeddedSettings",
    "advisories",
    "find",
    "run_alone",
]

REPLICA_SET = "rs0"
_POLL_S = 0.02
_LOG_CHECK_S = 10.0
_SELECT_TIMEOUT_MS = 10_000
_ALREADY_INITIALIZED = 23
_NOT_YET_INITIALIZED = 94

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSettings:
    """How the embedded mongod is run. `data` is Hearth's data directory, not mongod's own."""

    data: Path
    mongod: Path | None = None
    cache_gb: float = 0.25
    # mongod's default is a twentieth of the disk, and nobody replicates from a single member.
    oplog_mb: int = 512
    log_max_bytes: int = 8 << 20
    # Long, because a start after a crash replays the journal first.
    start_timeout_s: float = 60.0
    grace_s: float = 20.0


class EmbeddedMongod:
    """A mongod that runs for as long as the `async with` lasts, and comes back if it crashes.

    Raises EmbeddedMongoUnavailable on entry when there is no usable one, when another Hearth has
    the directory, or when it does not get ready.
    """

    def __init__(self, settings: EmbeddedSettings) -> None:
        self._settings = settings
        self._home = MongodHome(settings.data)
        self._stack = AsyncExitStack()
        self._supervisor: Supervisor | None = None
        self.version = ""
        self.uri = ""

    @property
    def pid(self) -> int | None:
        """The server's process; None while it is not running."""
        return self._supervisor.pid if self._supervisor else None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            binary = await find(self._settings.mongod)
            socket = stack.enter_context(self._home.held())
            await self._end_predecessor()
            self._home.set_log_aside(self._settings.log_max_bytes)
            helper = self._helper(binary, socket)
            self._supervisor = await stack.enter_async_context(Supervisor(helper))
            await self._get_ready(self._supervisor, socket)
            self.version = binary.version
            self.uri = _uri(socket, f"replicaSet={REPLICA_SET}")
            stop = asyncio.Event()
            bounding = asyncio.create_task(self._bound_log(stop), name="bound mongod.log")
            stack.push_async_callback(_finish, bounding, stop)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _end_predecessor(self) -> None:
        """Stop a mongod whose Hearth was killed. We hold the directory, so nobody needs it."""
        pid = self._home.pid()
        if pid and await end_orphan(pid, str(self._home.db), self._settings.grace_s):
            _log.warning("stopped the mongod %d that an earlier Hearth left behind", pid)

    def _helper(self, binary: Binary, socket: Path) -> Helper:
        argv = [str(binary.path), "--replSet", REPLICA_SET, "--quiet"]
        argv += ["--dbpath", str(self._home.db)]
        # The only address is the socket. The second option turns off the socket that mongod
        # would add in the shared temporary directory, where two of them would collide.
        argv += ["--bind_ip", str(socket), "--nounixsocket"]
        argv += ["--networkMessageCompressors", "disabled"]
        argv += ["--wiredTigerCacheSizeGB", str(self._settings.cache_gb)]
        argv += ["--oplogSize", str(self._settings.oplog_mb)]
        argv += ["--logpath", str(self._home.log), "--logappend", "--logRotate", "reopen"]
        argv += ["--setParameter", "diagnosticDataCollectionEnabled=false"]
        return Helper(
            name="mongod",
            argv=tuple(argv),
            # The same file: complaints about options are printed before the log is opened.
            output=self._home.log,
            grace_s=self._settings.grace_s,
        )

    async def _get_ready(self, supervisor: Supervisor, socket: Path) -> None:
        timeout_s = self._settings.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await supervisor.while_alive(_become_primary(socket))
        except TimeoutError as error:
            raise self._not_ready(f"mongod is not ready after {timeout_s:.0f} s") from error
        except (HelperExited, PyMongoError) as error:
            raise self._not_ready(f"mongod does not start: {error}") from error

    def _not_ready(self, reason: str) -> EmbeddedMongoUnavailable:
        return EmbeddedMongoUnavailable(f"{reason}\n{self._home.log_tail()}\nsee {self._home.log}")

    async def _bound_log(self, stop: asyncio.Event) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _LOG_CHECK_S)
                return
            if self._home.set_log_aside(self._settings.log_max_bytes):
                await self._reopen_log()

    async def _reopen_log(self) -> None:
        try:
            async with _connected(self.uri) as client:
                await client.admin.command({"logRotate": "server"})
        except PyMongoError as error:
            # It is down, then, and opens a new file when it is started again.
            _log.warning("mongod could not be told to reopen its log: %s", error)


async def run_alone(
    settings: EmbeddedSettings, on_ready: Callable[[str], None], stop: asyncio.Event
) -> None:
    """Run only the database, for daemons that share it, until `stop`. `on_ready` gets the URI."""
    async with EmbeddedMongod(settings) as mongod:
        on_ready(mongod.uri)
        await stop.wait()


def _uri(socket: Path, option: str) -> str:
    return f"mongodb://{quote_plus(str(socket))}/?{option}"


async def _become_primary(socket: Path) -> None:
    await _listening(socket)
    # A direct connection, because there may be no replica set yet. It is closed afterwards: a
    # client that has seen the server without one goes on believing that it has no sessions.
    uri = _uri(socket, "directConnection=true")
    async with _connected(uri) as client:
        while True:
            if await _is_member(client.admin, str(socket)):
                hello = await client.admin.command("hello")
                if hello["isWritablePrimary"]:
                    return
            await asyncio.sleep(_POLL_S)


async def _listening(socket: Path) -> None:
    # Not left to the driver, which pauses half a second after each refused connection.
    while True:
        try:
            _, writer = await asyncio.open_unix_connection(socket)
        except OSError:
            await asyncio.sleep(_POLL_S)
            continue
        writer.close()
        await writer.wait_closed()
        return


async def _is_member(admin: AsyncDatabase[dict[str, Any]], host: str) -> bool:
    """Make the server the only member of its set, known by `host`; False: ask again."""
    members = [{"_id": 0, "host": host}]
    try:
        config = (await admin.command("replSetGetConfig"))["config"]
    except OperationFailure as error:
        if error.code != _NOT_YET_INITIALIZED:
            raise
        return await _initiate(admin, members)
    if config["members"][0]["host"] != host:
        # The directory or its socket was moved. The server no longer finds itself in its set,
        # so there is no primary that an ordinary reconfiguration could ask.
        config |= {"members": members, "version": config["version"] + 1}
        await admin.command("replSetReconfig", config, force=True)
    return True


async def _initiate(admin: AsyncDatabase[dict[str, Any]], members: list[dict[str, Any]]) -> bool:
    try:
        await admin.command("replSetInitiate", {"_id": REPLICA_SET, "members": members})
    except OperationFailure as error:
        # A server that has only just begun may not have read its configuration yet.
        if error.code != _ALREADY_INITIALIZED:
            raise
        return False
    return True


@asynccontextmanager
async def _connected(uri: str) -> AsyncIterator[AsyncMongoClient[dict[str, Any]]]:
    # Not the client's own `async with`, which leaves it unclosed when cancelled while it opens.
    client = AsyncMongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=_SELECT_TIMEOUT_MS)
    try:
        yield client
    finally:
        await client.close()


async def _finish(task: asyncio.Task[None], stop: asyncio.Event) -> None:
    # Asked to end and not cancelled, so that a client it has open is closed in peace.
    stop.set()
    await task
