"""Claims: each batch goes to one daemon, in one step, in order, and never across a border."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from handlers.names import JobType
from queue_service import clock
from queue_service.batch import Batch
from queue_service.store.batches import MongoBatches
from queue_service.store.mongo import Mongo
from tests.store.support import (
    LEASE_S,
    RESIZE,
    all_stored,
    claimed,
    daemon,
    new_batch,
    stored,
    verdict_on,
    watched,
)

DAEMONS = 8


async def claim_all(batches: MongoBatches) -> list[Batch]:
    found: list[Batch] = []
    while batch := await batches.claim(RESIZE, LEASE_S):
        found.append(batch)
    return found


@pytest.mark.checklist("M9", "M21", "M66")
async def test_daemons_that_race_claim_each_batch_once(
    mongod: str, mongo: Mongo, batches: MongoBatches
) -> None:
    new = [new_batch(f"p{n:02}") for n in range(64)]
    await batches.add(new)
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Mongo(mongod, mongo.database.name, 20.0))
            for _ in range(DAEMONS)
        ]
        daemons = [daemon(client, slot) for slot, client in enumerate(clients, 1)]
        shares = await asyncio.gather(*map(claim_all, daemons))
    won = [batch for share in shares for batch in share]
    assert sorted(batch.fence.id for batch in won) == sorted(batch.id for batch in new)
    assert {batch.fence.gen for batch in won} == {1}
    assert sum(map(bool, shares)) > 1  # or there was no race
    locks = {row["_id"]: row["lock"] for row in await all_stored(mongo)}
    assert locks == {batch.fence.id: batch.fence.lock for batch in won}


@pytest.mark.checklist("M9")
async def test_one_batch_has_one_winner_each_time(mongo: Mongo, batches: MongoBatches) -> None:
    daemons = [daemon(mongo, slot) for slot in range(1, DAEMONS + 1)]
    await batches.add([new_batch("p")])
    for gen in range(1, 11):
        found = await asyncio.gather(*(one.claim(RESIZE, LEASE_S) for one in daemons))
        winners = [n for n, batch in enumerate(found) if batch]
        assert len(winners) == 1
        batch = found[winners[0]]
        assert batch is not None
        assert batch.fence.gen == gen
        await daemons[winners[0]].settle([verdict_on(batch, done=0)])


@pytest.mark.checklist("M9")
async def test_a_claim_is_one_write_of_lock_and_lease(mongo: Mongo, batches: MongoBatches) -> None:
    new = new_batch("p")
    await batches.add([new])
    earliest = await mongo.now()
    (command,) = await watched(mongo, claimed(batches))
    latest = await mongo.now()
    assert command["command"]["findAndModify"] == "batches"
    document = await stored(mongo, new.id)
    assert (document["lock"], document["gen"]) == ("s1.1", 1)
    assert earliest <= document["claim_dt"] <= latest
    assert document["dt"] == document["claim_dt"] + timedelta(seconds=LEASE_S)
    assert document["ready_dt"] == new.dt


@pytest.mark.checklist("M3", "M19", "M95")
async def test_a_claim_never_crosses_tenant_type_or_version(batches: MongoBatches) -> None:
    types = [
        JobType(tenant, type_)
        for tenant in ("acme", "acme2", "beta")
        for type_ in ("resize", "resize@3", "resize@31", "res")
    ]
    await batches.add(
        [new_batch(f"{t.tenant}.{t.type}.{n}", jobtype=t) for t in types for n in range(2)]
    )
    for jobtype in types:
        found = [await claimed(batches, jobtype) for _ in range(2)]
        assert {batch.jobtype for batch in found} == {jobtype}
        prefix = f"{jobtype.tenant}.{jobtype.type}.".encode()
        assert all(line.startswith(prefix) for b in found for line in b.data.splitlines())
        assert await batches.claim(jobtype, LEASE_S) is None
    assert await batches.claim(JobType("acme", "siz"), LEASE_S) is None


@pytest.mark.checklist("M66", "C31")
async def test_the_highest_priority_goes_first_and_then_the_oldest(batches: MongoBatches) -> None:
    now = clock.now()
    table = [("d", 50, 10), ("a", 90, 5), ("e", 50, 1), ("b", 90, 4), ("c", 50, 300), ("f", 1, 900)]
    await batches.add(
        [
            new_batch(post, priority=priority, dt=now - timedelta(seconds=ago))
            for post, priority, ago in table
        ]
        + [new_batch("z", priority=100, dt=now + timedelta(hours=1))]
    )
    order = [batch.spans[0].post for batch in await claim_all(batches)]
    assert order == ["a", "b", "c", "d", "e", "f"]
