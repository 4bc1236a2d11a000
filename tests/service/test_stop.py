"""Stopping in order: what runs may end, what does not is handed back, and nothing is lost by it."""

from __future__ import annotations

import os
import random
import signal
from asyncio import CancelledError, Event, create_task
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from queue_service import daemon
from queue_service.errors import StoreUnavailable
from queue_service.store.batches import MongoBatches
from queue_service.store.embedded import EmbeddedMongod, EmbeddedSettings
from tests.waiting import eventually

from .load import ECHO, TYPE, Load
from .processes import LEASES, process
from .support import Client, serving, session, settings_of


@pytest.mark.checklist("M29", "M45")
async def test_a_daemon_stopped_under_load_ends_well_and_nothing_is_lost(
    mongod: str, database: str, tmp_path: Path
) -> None:
    load = Load(posts=60, lines=200, rng=random.Random(2))
    async with process(tmp_path / "data", mongo=mongod, database=database) as served:
        client = await (await served.start()).tenant()
        await client.upload(TYPE, ECHO)
        async with load.posting(client):
            await eventually(lambda: load.reached(load.size // 3))
            assert await served.stop() == 0
        assert len(load.acknowledged) > 0
        client = await served.restart(client)
        await load.post(client)
        await load.balance(client)


@pytest.mark.checklist("M45")
async def test_what_does_not_end_in_time_comes_back_without_an_attempt_lost(
    mongod: str, database: str, tmp_path: Path
) -> None:
    settings = {"mongo": mongod, "database": database, "drain_s": 0.5, "contexts": 2}
    async with (
        process(tmp_path / "data", **settings) as served,
        AsyncMongoClient[dict[str, Any]](mongod) as mongo,
    ):
        client = await (await served.start()).tenant()
        await client.upload("work")
        jobs = [{"do": "sleep", "s": 1.5, "n": n} for n in range(2)]
        ids = [(await client.submit("work", [job], retries=0))[0] for job in jobs]
        await eventually(lambda: running(client, ids))
        started = perf_counter()
        assert await served.stop() == 0
        assert perf_counter() - started < 4
        # Handed back, and not left to its lease.
        found = await mongo[database].batches.find().to_list()
        assert [(batch["lock"], batch["attempt"]) for batch in found] == [("", 1), ("", 1)]
        client = await served.restart(client)
        ended = await client.ended(ids)
        assert [(r["code"], r["attempt"], r["value"]["n"]) for r in ended] == [
            ("ok", 1, 0),
            ("ok", 1, 1),
        ]
        row = await client.row("work")
        assert (row["ok"], row["retry"], row["error"]) == (2, 0, 0)


async def running(client: Client, ids: list[str]) -> bool:
    return [(await client.job(id_))["state"] for id_ in ids] == ["running"] * len(ids)


async def test_a_daemon_that_stops_lets_go_of_those_who_wait(
    mongod: str, database: str, tmp_path: Path
) -> None:
    async with session() as http:
        async with serving(settings_of(tmp_path, mongod, database)) as hearth:
            acme = await hearth.tenant()
            waiting = create_task(replace(acme, http=http).post("unhandled", b"1", wait=60))
            await eventually(lambda: waits(acme))
            started = perf_counter()
        answer = await waiting
    assert answer.status == 202
    assert answer.json["count"] == 1
    assert perf_counter() - started < 10


async def waits(client: Client) -> bool:
    return (await client.row("unhandled")).get("waiting") == 1


async def test_a_second_signal_ends_a_daemon_at_once(
    mongod: str, database: str, tmp_path: Path
) -> None:
    async with process(tmp_path / "data", mongo=mongod, database=database, drain_s=30) as served:
        client = await (await served.start()).tenant()
        await client.upload("work")
        [id_] = await client.submit("work", [{"do": "sleep", "s": 20}])
        await eventually(lambda: running(client, [id_]))
        stopping = create_task(served.stop())
        await eventually(lambda: b"daemon.draining" in served.log.read_bytes())
        assert not stopping.done()
        served.send_again()
        started = perf_counter()
        assert await stopping != 0
        assert perf_counter() - started < 10
        assert b"Traceback" not in served.log.read_bytes()


@pytest.mark.checklist("M29", "M45")
async def test_a_daemon_can_be_stopped_while_its_database_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "_FLUSH_S", 1.0)
    load = Load(posts=20, lines=100, rng=random.Random(4))
    async with EmbeddedMongod(EmbeddedSettings(data=tmp_path / "db")) as mongod:
        assert mongod.pid is not None
        settings = settings_of(tmp_path / "data", mongod.uri, "hearth", drain_s=0.5, **LEASES)
        with suppress(StoreUnavailable):  # it may say that it could not take its leave
            async with serving(settings) as hearth:
                client = await hearth.tenant()
                await client.upload(TYPE, ECHO)
                await load.post(client, enough=lambda: load.reached(500))
                os.kill(mongod.pid, signal.SIGSTOP)
                await load.post(client)
                started = perf_counter()
        assert perf_counter() - started < 10
        os.kill(mongod.pid, signal.SIGCONT)
        async with serving(settings) as hearth:
            await load.balance(hearth.at(client))


async def test_a_cancellation_that_a_library_loses_does_not_keep_a_daemon_from_stopping(
    mongod: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Before Python 3.12 `asyncio.wait_for`, in which the driver sends, does so now and then.
    asked = Event()

    async def loses_one(self: MongoBatches, limit: int) -> int:
        if not asked.is_set():
            asked.set()
            with suppress(CancelledError):
                await Event().wait()
        return 0

    monkeypatch.setattr(MongoBatches, "sweep", loses_one)
    async with serving(settings_of(tmp_path, mongod, database)):
        await eventually(asked.is_set)
