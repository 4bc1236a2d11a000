"""Batches on their way in: what is stored, that twice is once, and what makes a batch eligible.

Who gets an eligible batch is in `test_claims.py`, what looking for it costs in `test_costs.py`.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from handlers.names import JobType
from queue_service import clock
from queue_service.batch import DONE, FREE, LIVE_BEFORE, taken
from queue_service.store.base import Waiting
from queue_service.store.batches import MongoBatches
from queue_service.store.mongo import Mongo
from runners.base import Span
from tests.store.support import (
    FAR_AWAY,
    LEASE_S,
    LONG_AGO,
    RESIZE,
    all_stored,
    claimed,
    held,
    new_batch,
    put_into,
    stored,
    verdict_on,
    watched,
)
from tests.waiting import eventually

# What is stored.


@pytest.mark.checklist("M1", "M3", "M7")
async def test_a_new_batch_has_the_fields_of_the_contract(
    mongo: Mongo, batches: MongoBatches
) -> None:
    due = clock.now() + timedelta(hours=1)
    new = new_batch("p", "q", lines=2, dt=due, priority=70)
    await batches.add([new])
    document = await stored(mongo, "p-0.1")
    expected = {
        "tenant": "acme",
        "type": "resize",
        "dt": due,
        "lock": FREE,
        "gen": 0,
        "prio": 70,
        "attempt": 1,
        "n": 4,
        "data": b"p-0\np-1\nq-0\nq-1\n",
        "spans": [{"p": "p", "f": 0, "e": 2}, {"p": "q", "f": 0, "e": 2}],
        "create_dt": new.create_dt,
    }
    assert {name: document.get(name) for name in expected} == expected
    assert document["opts"] == {
        "timeout_s": 60.0,
        "retries": 3,
        "retry_delay_s": 30.0,
        "window_s": 3600.0,
    }
    assert "done_dt" not in document


@pytest.mark.checklist("M5")
async def test_a_claim_hands_out_what_was_added(batches: MongoBatches) -> None:
    every_byte = bytes(range(256)).replace(b"\n", b"")
    data = b"\n\r\n" + every_byte + b"\n\xe2\x80\xa8\n"
    new = new_batch(Span(post="p", first=7, count=4), attempt=3, data=data, priority=1)
    batch = await held(batches, new)
    assert (batch.data, batch.count, batch.spans) == (data, 4, new.spans)
    assert (batch.jobtype, batch.attempt, batch.options) == (RESIZE, 3, new.options)
    assert (batch.create_dt, batch.ready_dt) == (new.create_dt, new.dt)
    assert (batch.careful, batch.recoveries) == (False, 0)


# Twice is once.


@pytest.mark.checklist("M2")
@pytest.mark.parametrize("state", ["waiting", "running", "done"])
async def test_adding_again_changes_nothing(
    mongo: Mongo, batches: MongoBatches, state: str
) -> None:
    new = new_batch("p")
    await batches.add([new])
    if state != "waiting":
        batch = await claimed(batches)
        if state == "done":
            await batches.settle([verdict_on(batch)])
    before = await stored(mongo, new.id)
    other = new_batch("p", lines=2, priority=99, dt=LONG_AGO)
    assert other.id == new.id
    await batches.add([other])
    assert await all_stored(mongo) == [before]


@pytest.mark.checklist("M2")
async def test_what_is_new_among_what_is_there_is_stored(
    mongo: Mongo, batches: MongoBatches
) -> None:
    await batches.add([new_batch("b")])
    await batches.add([new_batch("a"), new_batch("b"), new_batch("c"), new_batch("c")])
    assert [row["_id"] for row in await all_stored(mongo)] == ["a-0.1", "b-0.1", "c-0.1"]
    await batches.add([])
    assert len(await all_stored(mongo)) == 3


@pytest.mark.checklist("M2")
async def test_daemons_that_add_the_same_at_once_store_it_once(
    mongo: Mongo, batches: MongoBatches, rival: MongoBatches
) -> None:
    new = [new_batch(f"p{n}") for n in range(20)]
    await asyncio.gather(*(daemon.add(new) for daemon in (batches, rival) for _ in range(4)))
    assert [row["_id"] for row in await all_stored(mongo)] == sorted(batch.id for batch in new)


async def test_a_majority_acknowledges_what_is_added_and_ended_but_not_a_claim(
    mongo: Mongo, batches: MongoBatches
) -> None:
    (insert,) = await watched(mongo, batches.add([new_batch("p")]))
    assert insert["command"]["writeConcern"] == {"w": "majority"}
    (claim,) = await watched(mongo, claimed(batches))
    assert claim["command"]["writeConcern"] == {"w": 1}
    # The profiler shows an update without its concern, so that is asked of the collection.
    assert mongo.collection("batches").write_concern.document == {"w": "majority"}


# Held at birth.


async def test_a_batch_held_at_birth_is_running_under_its_fence(
    mongo: Mongo, batches: MongoBatches, rival: MongoBatches
) -> None:
    new = new_batch("p")
    batch = taken(new, "s1.1", clock.now())
    earliest = await mongo.now()
    await batches.add_held(new, batch.fence, LEASE_S)
    latest = await mongo.now()
    document = await stored(mongo, new.id)
    assert (document["lock"], document["gen"]) == ("s1.1", batch.fence.gen)
    assert earliest <= document["dt"] - timedelta(seconds=LEASE_S) <= latest
    assert (document["ready_dt"], document["data"]) == (new.dt, new.data)
    assert await rival.claim(RESIZE, LEASE_S) is None
    assert await batches.renew([new.id], LEASE_S) == {new.id}
    assert await batches.settle([verdict_on(batch)]) == [True]


@pytest.mark.checklist("M2")
@pytest.mark.parametrize("there", ["held", "waiting"])
async def test_holding_at_birth_what_is_there_changes_nothing(
    mongo: Mongo, batches: MongoBatches, there: str
) -> None:
    new = new_batch("p")
    fence = taken(new, "s1.1", clock.now()).fence
    if there == "held":
        await batches.add_held(new, fence, LEASE_S)
    else:
        await batches.add([new])
    before = await stored(mongo, new.id)
    await batches.add_held(new, fence, 2 * LEASE_S)
    assert await all_stored(mongo) == [before]


# Eligible or not.


@pytest.mark.checklist("M6", "M8", "M10", "M16")
@pytest.mark.parametrize(
    ("lock", "dt", "eligible"),
    [
        (FREE, LONG_AGO, True),
        (FREE, FAR_AWAY, False),
        ("s9.1", LONG_AGO, False),
        ("s9.1", FAR_AWAY, False),
        (DONE, LONG_AGO, False),
        (DONE, LIVE_BEFORE, False),
        ("__paused", LONG_AGO, False),
    ],
)
async def test_eligible_is_what_is_free_and_due(
    mongo: Mongo, batches: MongoBatches, lock: str, dt: datetime, eligible: bool
) -> None:
    await batches.add([new_batch("p")])
    await put_into(mongo, "p-0.1", lock=lock, dt=dt)
    assert [found.jobtype for found in await batches.waiting()] == [RESIZE] * eligible
    assert (await batches.claim(RESIZE, LEASE_S) is not None) == eligible


@pytest.mark.checklist("M8")
async def test_a_deferred_batch_becomes_ready_by_time_alone(batches: MongoBatches) -> None:
    new = new_batch("p", dt=clock.now() + timedelta(seconds=0.5))
    await batches.add([new])
    assert await batches.waiting() == []
    assert await batches.claim(RESIZE, LEASE_S) is None

    async def waits() -> bool:
        return await batches.waiting() != []

    await eventually(waits)
    assert (await claimed(batches)).claim_dt >= new.dt


@pytest.mark.checklist("M96")
async def test_where_nothing_waits_there_is_nothing_to_claim(batches: MongoBatches) -> None:
    assert await batches.waiting() == []
    assert await batches.claim(RESIZE, LEASE_S) is None
    assert await batches.claim_expired(RESIZE, LEASE_S) is None


@pytest.mark.checklist("M65", "M81", "M19")
async def test_waiting_lists_the_runnable_types_with_their_counts(batches: MongoBatches) -> None:
    pinned, foreign = JobType("acme", "resize@3"), JobType("beta", "resize")
    deferred, gone = JobType("acme", "later"), JobType("acme", "running")
    oldest = new_batch("a", lines=5, dt=LONG_AGO)
    await batches.add(
        [
            oldest,
            new_batch("b", lines=2, priority=99),
            new_batch("c", lines=7, dt=FAR_AWAY),
            new_batch("d", lines=3, jobtype=pinned, dt=LONG_AGO),
            new_batch("e", lines=4, jobtype=foreign, dt=LONG_AGO),
            new_batch("f", jobtype=deferred, dt=FAR_AWAY),
        ]
    )
    await held(batches, new_batch("g", jobtype=gone))

    async def as_expected() -> bool:
        # A claim may be a moment old before a majority has it.
        found = {one.jobtype: one for one in await batches.waiting()}
        return found == {
            RESIZE: Waiting(jobtype=RESIZE, batches=2, jobs=7, oldest=LONG_AGO),
            pinned: Waiting(jobtype=pinned, batches=1, jobs=3, oldest=LONG_AGO),
            foreign: Waiting(jobtype=foreign, batches=1, jobs=4, oldest=LONG_AGO),
        }

    await eventually(as_expected, within_s=5.0)


async def test_claim_expired_takes_only_batches_whose_window_has_ended(
    batches: MongoBatches,
) -> None:
    an_hour_ago = clock.now() - timedelta(hours=1)
    foreign = JobType("beta", "resize")
    await batches.add(
        [
            new_batch("fresh", priority=99),
            new_batch("old", created=an_hour_ago, window_s=3599.0),
            new_batch("oldbutlater", created=an_hour_ago, window_s=3599.0, dt=FAR_AWAY),
            new_batch("other", created=an_hour_ago, window_s=1.0, jobtype=foreign),
        ]
    )
    batch = await batches.claim_expired(RESIZE, LEASE_S)
    assert batch is not None
    assert batch.fence.id == "old-0.1"
    assert await batches.claim_expired(RESIZE, LEASE_S) is None


async def test_daemons_that_prepare_the_same_database_at_once_do_not_disturb_each_other(
    mongod: str, database: str
) -> None:
    async with Mongo(mongod, database, 20.0) as one, Mongo(mongod, database, 20.0) as other:
        await asyncio.gather(*(mongo.prepare() for mongo in (one, other, one, other)))
        names = set(await one.collection("batches").index_information())
    assert {"claim", "waiting", "held", "job", "results", "purge", "metered"} <= names
