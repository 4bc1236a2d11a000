"""Daemons killed with -9: every acknowledged job still ends exactly once, with its own result."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection

from tests.waiting import eventually

from .load import ECHO, TYPE, Load
from .processes import LEASES, process
from .support import Client, moment


async def ok(client: Client) -> int:
    return int((await client.row(TYPE)).get("ok", 0))


@pytest.mark.checklist("M5", "M29", "M45")
async def test_a_daemon_killed_in_the_middle_of_a_drain_loses_and_repeats_nothing(
    mongod: str, database: str, tmp_path: Path
) -> None:
    load = Load(posts=40, lines=750, rng=random.Random(1))
    async with process(tmp_path / "data", mongo=mongod, database=database) as served:
        client = await (await served.start()).tenant()
        await client.upload(TYPE, ECHO)
        await load.post(client, enough=lambda: len(load.acknowledged) >= load.size // 2)

        async def midway() -> bool:
            return 0 < await ok(client) < len(load.acknowledged)

        await eventually(midway)
        await served.kill()
        client = await served.restart(client)
        await load.post(client)
        assert load.unanswered == []
        assert len(load.acknowledged) == load.size
        await load.balance(client)


@pytest.mark.checklist("M29", "M45")
async def test_a_daemon_and_its_database_killed_twice_at_any_moment_lose_nothing(
    tmp_path: Path,
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown if the test fails
    rng = random.Random(seed)
    load = Load(posts=60, lines=200, rng=rng)
    first, second = sorted(rng.sample(range(1, load.size), 2))
    async with process(tmp_path / "data") as served:  # embedded: the database dies as well
        client = await (await served.start()).tenant()
        await client.upload(TYPE, ECHO)
        for jobs in (first, second):
            async with load.posting(client):
                await eventually(partial(load.reached, jobs))
                await served.kill()
            client = await served.restart(client)
        await load.post(client)
        assert len(load.acknowledged) + 200 * len(load.unanswered) == load.size
        await load.balance(client)


@pytest.mark.checklist("M13", "M21", "M45")
async def test_what_a_killed_daemon_was_running_is_taken_over_by_another(
    mongod: str, database: str, tmp_path: Path
) -> None:
    shared = {"mongo": mongod, "database": database, "contexts": 2}
    async with (
        process(tmp_path / "one", **shared) as one,
        process(tmp_path / "two", **shared) as two,
        AsyncMongoClient[dict[str, Any]](mongod) as mongo,
    ):
        batches = mongo[database].batches
        a, b = await one.start(), await two.start()
        client = await a.tenant()
        await client.upload("work")
        [slow] = await client.submit("work", [{"do": "sleep", "s": 1, "n": 1}])
        await eventually(lambda: held(batches, a.sysid))
        await one.kill()
        killed = datetime.now(UTC)
        assert (await b.at(client).job(slow))["state"] == "running"
        [record] = await b.at(client).ended([slow])
        assert (record["code"], record["value"]["n"]) == ("ok", 1)
        assert record["attempt"] == 1  # whoever dies with a job takes no attempt away from it
        assert [batch["by"] async for batch in batches.find()] == [b.sysid]
        # Not before the lease had ended, of which at most one renewal's time had passed.
        waited_s = (moment(record["done_dt"]) - killed).total_seconds() - 1
        assert waited_s > LEASES["lease_s"] - LEASES["renew_every_s"] - 0.5
        row = await b.at(client).row("work")
        assert (row["ok"], row["running"], row["waiting"]) == (1, 0, 0)


@pytest.mark.checklist("M22", "M29", "M45")
async def test_what_a_killed_daemon_had_only_in_its_journal_waits_for_its_return(
    mongod: str, database: str, tmp_path: Path
) -> None:
    shared = {"mongo": mongod, "database": database}
    load = Load(posts=20, lines=300, rng=random.Random(3))
    async with (
        process(tmp_path / "one", **shared) as one,
        process(tmp_path / "two", **shared) as two,
    ):
        a, b = await one.start(), await two.start()
        client = await a.tenant()
        await client.upload(TYPE, ECHO)
        await load.post(client)
        await one.kill()
        again = await one.start()
        assert again.sysid not in (a.sysid, b.sysid)
        await load.balance(b.at(client))
        await load.balance(again.at(client))


async def held(batches: AsyncCollection[dict[str, Any]], sysid: str) -> bool:
    return await batches.count_documents({"lock": sysid}) == 1
