"""A MongoDB that goes away: every verb says so in time and works again afterwards.

With a mongod of its own, because it is stopped, frozen and killed here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus
from uuid import uuid4

import pytest

from handlers.definition import Definition
from queue_service import clock
from queue_service.batch import taken
from queue_service.errors import StoreUnavailable
from queue_service.store import base
from queue_service.store.base import Key, Sysid, Wanted
from queue_service.store.daemons import MongoDaemons
from queue_service.store.embedded import EmbeddedMongod, EmbeddedSettings
from queue_service.store.handlers import MongoHandlers
from queue_service.store.mongo import Mongo, UnusableStore
from queue_service.store.mongod_binary import find
from queue_service.store.results import MongoResults
from queue_service.store.tenants import MongoTenants
from runners.base import Bad
from runners.supervise import Helper, Supervisor
from tests.store.support import (
    LEASE_S,
    RESIZE,
    archived,
    daemon,
    held,
    new_batch,
    verdict_on,
)
from tests.waiting import eventually

TIMEOUT_S = 0.75
SOURCE = Definition(lang="python", body="return 1")
SYSID = Sysid(slot=1, epoch=1)

Verb = Callable[[Mongo], Awaitable[Any]]


async def _streamed(mongo: Mongo) -> list[Any]:
    stream = MongoResults(mongo).results("acme", type_=None, codes=(), since=None)
    return [one async for one in stream]


async def _hold(mongo: Mongo) -> None:
    new = new_batch("h")
    await daemon(mongo).add_held(new, taken(new, "s1.1", clock.now()).fence, LEASE_S)


VERBS: dict[str, Verb] = {
    "BatchStore.add": lambda m: daemon(m).add([new_batch("p")]),
    "BatchStore.add_held": _hold,
    "BatchStore.covered": lambda m: daemon(m).covered("acme", ["p"]),
    "BatchStore.mark": lambda m: daemon(m).mark("one"),
    "BatchStore.move_marks": lambda m: daemon(m).move_marks({"one": 1}),
    "BatchStore.waiting": lambda m: daemon(m).waiting(),
    "BatchStore.claim": lambda m: daemon(m).claim(RESIZE, LEASE_S),
    "BatchStore.claim_expired": lambda m: daemon(m).claim_expired(RESIZE, LEASE_S),
    "BatchStore.renew": lambda m: daemon(m).renew(["p-0.1"], LEASE_S),
    "BatchStore.settle": lambda m: daemon(m).settle([archived("q")]),
    "BatchStore.fold": lambda m: daemon(m).fold(10),
    "BatchStore.sweep": lambda m: daemon(m).sweep(10),
    "BatchStore.purge": lambda m: daemon(m).purge(60.0, 10),
    "ResultStore.job": lambda m: MongoResults(m).job("acme", "p", 0),
    "ResultStore.outline": lambda m: MongoResults(m).outline("acme", "p"),
    "ResultStore.finished": lambda m: MongoResults(m).finished("acme", "p-0.1"),
    "ResultStore.known": lambda m: MongoResults(m).known("acme", "p"),
    "ResultStore.results": _streamed,
    "ResultStore.batches": lambda m: MongoResults(m).batches("acme", Wanted(), None, 1),
    "ResultStore.scoreboard": lambda m: MongoResults(m).scoreboard("acme"),
    "HandlerStore.put": lambda m: MongoHandlers(m).put("acme", "resize", SOURCE),
    "HandlerStore.get": lambda m: MongoHandlers(m).get("acme", "resize"),
    "HandlerStore.versions": lambda m: MongoHandlers(m).versions("acme", "resize"),
    "HandlerStore.names": lambda m: MongoHandlers(m).names("acme"),
    "HandlerStore.delete": lambda m: MongoHandlers(m).delete("acme", "crop"),
    "TenantStore.create": lambda m: MongoTenants(m).create("acme", clock.now()),
    "TenantStore.exists": lambda m: MongoTenants(m).exists("acme"),
    "TenantStore.all": lambda m: MongoTenants(m).all(),
    "TenantStore.delete": lambda m: MongoTenants(m).delete("beta"),
    "TenantStore.add_key": lambda m: MongoTenants(m).add_key(
        Key(id=os.urandom(4).hex(), digest=b"d", tenant="acme", created=clock.now())
    ),
    "TenantStore.revoke_key": lambda m: MongoTenants(m).revoke_key("acme", "k"),
    "TenantStore.keys": lambda m: MongoTenants(m).keys("acme"),
    "TenantStore.find_key": lambda m: MongoTenants(m).find_key("k"),
    "DaemonRegistry.reserve": lambda m: MongoDaemons(m).reserve({}, LEASE_S),
    "DaemonRegistry.renew_sysid": lambda m: MongoDaemons(m).renew_sysid(SYSID, LEASE_S),
    "DaemonRegistry.release": lambda m: MongoDaemons(m).release(SYSID),
    "now": lambda m: m.now(),
    "prepare": lambda m: m.prepare(),
}


def test_the_table_has_every_verb_of_the_store() -> None:
    names = ("BatchStore", "ResultStore", "HandlerStore", "TenantStore", "DaemonRegistry")
    verbs = {
        f"{name}.{verb}"
        for name in names
        for verb in vars(getattr(base, name))
        if not verb.startswith("_")
    }
    assert verbs | {"now", "prepare"} == set(VERBS)


async def outcome_of(verb: Verb, mongo: Mongo) -> tuple[str, bool]:
    """What a verb ends in, and whether it does so in time."""
    begun = time.monotonic()
    try:
        async with asyncio.timeout(4 * TIMEOUT_S):
            await verb(mongo)
    except Exception as error:
        return type(error).__name__, time.monotonic() - begun < 3 * TIMEOUT_S
    return "ok", True


async def all_outcomes(mongo: Mongo) -> dict[str, tuple[str, bool]]:
    ends = await asyncio.gather(*(outcome_of(verb, mongo) for verb in VERBS.values()))
    return dict(zip(VERBS, ends, strict=True))


ALL_WELL = dict.fromkeys(VERBS, ("ok", True))
ALL_AWAY = dict.fromkeys(VERBS, ("StoreUnavailable", True))


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedMongod]:
    async with EmbeddedMongod(EmbeddedSettings(data=tmp_path_factory.mktemp("away"))) as running:
        yield running


@asynccontextmanager
async def connected(uri: str) -> AsyncIterator[Mongo]:
    async with Mongo(uri, f"test_{uuid4().hex[:12]}", TIMEOUT_S) as mongo:
        await mongo.prepare()
        yield mongo


@asynccontextmanager
async def frozen(server: EmbeddedMongod) -> AsyncIterator[None]:
    """A server that takes connections and says nothing."""
    pid = server.pid
    assert pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def answers(mongo: Mongo) -> bool:
    with suppress(StoreUnavailable):
        await mongo.now()
        return True
    return False


async def test_every_verb_says_that_a_frozen_server_is_away_and_works_again(
    server: EmbeddedMongod,
) -> None:
    async with connected(server.uri) as mongo:
        assert await all_outcomes(mongo) == ALL_WELL
        assert mongo.answers
        async with frozen(server):
            assert await all_outcomes(mongo) == ALL_AWAY
            assert not mongo.answers
        await eventually(lambda: answers(mongo))
        assert await all_outcomes(mongo) == ALL_WELL
        assert mongo.answers


async def test_every_verb_says_that_a_stopped_server_is_away_and_works_again(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = EmbeddedSettings(data=tmp_path_factory.mktemp("away"))
    async with EmbeddedMongod(settings) as server:
        uri = server.uri
        async with connected(uri) as mongo:
            name = mongo.database.name
    async with Mongo(uri, name, TIMEOUT_S) as mongo:
        assert await all_outcomes(mongo) == ALL_AWAY
        assert not mongo.answers
        async with EmbeddedMongod(settings) as server:
            assert server.uri == uri
            await eventually(lambda: answers(mongo))
            assert await all_outcomes(mongo) == ALL_WELL
            await mongo.client.close()  # while there is somebody to say goodbye to


async def test_a_settlement_with_successors_also_says_in_time_that_the_server_is_away(
    server: EmbeddedMongod,
) -> None:
    """It is a transaction, and the driver would go on trying that for two minutes."""
    async with connected(server.uri) as mongo:
        batches = daemon(mongo)
        settlement = verdict_on(await held(batches, new_batch("p")), Bad(0, 100))
        async with frozen(server):
            outcome = await outcome_of(lambda _: batches.settle([settlement]), mongo)
        assert outcome == ("StoreUnavailable", True)
        await eventually(lambda: answers(mongo))
        assert await batches.settle([settlement]) == [True]


async def test_a_store_that_is_away_is_not_said_to_answer_before_it_does(
    server: EmbeddedMongod,
) -> None:
    async with connected(server.uri) as mongo:
        batches = daemon(mongo)
        settlement = verdict_on(await held(batches, new_batch("p")), Bad(0, 100))
        async with frozen(server):
            with pytest.raises(StoreUnavailable):
                await batches.waiting()
            assert not mongo.answers
            await batches.add([])  # asks nothing
            seen = [mongo.answers]
            trying = asyncio.create_task(batches.settle([settlement]))
            await asyncio.wait({trying}, timeout=0.2)
            seen.append(mongo.answers)
            trying.cancel()
            await asyncio.gather(trying, return_exceptions=True)
        assert seen == [False, False]


async def test_what_was_acknowledged_survives_the_death_of_the_server(
    server: EmbeddedMongod,
) -> None:
    async with connected(server.uri) as mongo:
        batches, pid = daemon(mongo), server.pid
        assert pid
        await batches.add([new_batch(f"p{n}") for n in range(10)])
        assert await batches.settle([archived("q")]) == [True]
        os.kill(pid, signal.SIGKILL)

        async def is_another() -> bool:
            return server.pid not in (None, pid) and await answers(mongo)

        await eventually(is_another)
        assert [found.batches for found in await batches.waiting()] == [10]
        assert await MongoResults(mongo).finished("acme", "q-0.1") is not None


async def test_a_stream_that_a_restart_interrupts_ends_as_unavailable(
    server: EmbeddedMongod,
) -> None:
    """Its cursor is gone with the old server; the reader has its own to go on from."""
    async with connected(server.uri) as mongo:
        pid = server.pid
        assert pid
        assert all(await daemon(mongo).settle([archived(f"p{n:02}") for n in range(60)]))
        stream = MongoResults(mongo).results("acme", type_=None, codes=(), since=None)
        await anext(stream)
        os.kill(pid, signal.SIGKILL)

        async def is_another() -> bool:
            return server.pid not in (None, pid) and await answers(mongo)

        await eventually(is_another)
        with pytest.raises(StoreUnavailable):
            async for _ in stream:
                pass


async def test_a_standalone_server_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    home: Path = tmp_path_factory.mktemp("alone")
    binary, socket = await find(None), home / "m.sock"
    (home / "db").mkdir()
    argv = [str(binary.path), "--quiet", "--dbpath", str(home / "db"), "--bind_ip", str(socket)]
    argv += ["--nounixsocket", "--wiredTigerCacheSizeGB", "0.25"]
    helper = Helper(name="mongod", argv=tuple(argv), output=home / "mongod.log")
    uri = f"mongodb://{quote_plus(str(socket))}/"
    async with Supervisor(helper), Mongo(uri, "hearth", TIMEOUT_S) as mongo:
        await eventually(lambda: answers(mongo))
        with pytest.raises(UnusableStore, match="needs a replica set"):
            await mongo.prepare()
        assert "batches" not in await mongo.database.list_collection_names()
