"""Leases: renewed by their holder alone, swept when they have ended, judged by the server's clock.

What a daemon that comes back late can still do, which is nothing, is in `test_late.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any

import pytest

from queue_service.batch import DONE, FREE, LIVE_BEFORE
from queue_service.store.base import Sysid
from queue_service.store.batches import MongoBatches
from queue_service.store.daemons import MongoDaemons
from queue_service.store.mongo import Mongo
from tests.store.support import (
    FAR_AWAY,
    LEASE_S,
    LONG_AGO,
    RESIZE,
    all_stored,
    claimed,
    daemon,
    held,
    lapsed,
    new_batch,
    put_into,
    stored,
    verdict_on,
    watched,
)

# Renewing.


@pytest.mark.checklist("M11", "M12")
async def test_renewing_prolongs_what_the_daemon_holds_and_nothing_else(
    mongo: Mongo, batches: MongoBatches, rival: MongoBatches
) -> None:
    ours = [await held(batches, new_batch(post), lease_s=5.0) for post in ("a", "b")]
    theirs = await held(rival, new_batch("c"), lease_s=5.0)
    await batches.add([new_batch("d")])
    others = [await stored(mongo, id_) for id_ in (theirs.fence.id, "d-0.1")]
    earliest = await mongo.now()
    kept = await batches.renew(["a-0.1", "b-0.1", "c-0.1", "d-0.1", "nobody-0.1"], 500.0)
    latest = await mongo.now()
    assert kept == {"a-0.1", "b-0.1"}
    for batch in ours:
        document = await stored(mongo, batch.fence.id)
        assert earliest <= document["dt"] - timedelta(seconds=500.0) <= latest
        assert (document["lock"], document["gen"]) == (batch.fence.lock, batch.fence.gen)
    assert [await stored(mongo, id_) for id_ in (theirs.fence.id, "d-0.1")] == others
    assert await batches.renew([], LEASE_S) == set()


@pytest.mark.checklist("M11")
async def test_a_batch_that_is_renewed_does_not_lapse(
    mongo: Mongo, batches: MongoBatches, rival: MongoBatches
) -> None:
    batch = await lapsed(mongo, batches, new_batch("p"))
    assert await batches.renew([batch.fence.id], LEASE_S) == {batch.fence.id}
    assert await rival.sweep(100) == 0
    assert await rival.claim(RESIZE, LEASE_S) is None
    assert await batches.settle([verdict_on(batch)]) == [True]


async def test_what_was_settled_is_no_longer_held(batches: MongoBatches) -> None:
    done = await held(batches, new_batch("a"))
    back = await held(batches, new_batch("b"))
    await batches.settle([verdict_on(done), verdict_on(back, done=0)])
    assert await batches.renew([done.fence.id, back.fence.id], LEASE_S) == set()


# Sweeping.


@pytest.mark.checklist("M13", "M16")
async def test_a_sweep_frees_what_is_abandoned_and_only_that(
    mongo: Mongo, rival: MongoBatches
) -> None:
    rows: list[tuple[str, str, datetime]] = [
        ("abandoned", "s9.1", LONG_AGO),
        ("running", "s9.1", FAR_AWAY),
        ("ready", FREE, LONG_AGO),
        ("deferred", FREE, FAR_AWAY),
        ("done", DONE, LIVE_BEFORE + timedelta(days=36525)),
        ("doneandpast", DONE, LONG_AGO),
        ("paused", "__paused", LONG_AGO),
        ("suspended", "__suspended", FAR_AWAY),
    ]
    await rival.add([new_batch(post) for post, _, _ in rows])
    for post, lock, dt in rows:
        await put_into(mongo, f"{post}-0.1", lock=lock, dt=dt, gen=4)
    before = await all_stored(mongo)
    earliest = await mongo.now()
    assert await rival.sweep(100) == 1
    latest = await mongo.now()
    after = await all_stored(mongo)
    swept = [new for old, new in zip(before, after, strict=True) if old != new]
    assert [row["_id"] for row in swept] == ["abandoned-0.1"]
    (row,) = swept
    assert (row["lock"], row["gen"], row["recoveries"], row["careful"]) == (FREE, 4, 1, True)
    assert earliest <= row["dt"] <= latest
    assert await rival.sweep(100) == 0


@pytest.mark.checklist("M13", "M45", "M66")
async def test_an_abandoned_batch_runs_again_elsewhere(
    mongo: Mongo, batches: MongoBatches, rival: MongoBatches
) -> None:
    first = await lapsed(mongo, batches, new_batch("p"))
    for recoveries in (1, 2):
        assert await rival.sweep(100) == 1
        again = await claimed(rival)
        await put_into(mongo, again.fence.id, dt=LONG_AGO)
        assert (again.fence.lock, again.fence.gen) == ("s2.1", first.fence.gen + recoveries)
        assert (again.recoveries, again.careful) == (recoveries, True)
        assert (again.attempt, again.data) == (first.attempt, first.data)


async def test_a_sweep_is_bounded(mongo: Mongo, batches: MongoBatches) -> None:
    for number in range(5):
        await lapsed(mongo, batches, new_batch(f"p{number}"))
    assert [await batches.sweep(2) for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.checklist("M13", "M21")
async def test_daemons_that_sweep_at_once_count_each_recovery_once(mongo: Mongo) -> None:
    daemons = [daemon(mongo, slot) for slot in range(1, 9)]
    await daemons[0].add([new_batch(f"p{number:02}") for number in range(40)])
    for number in range(40):
        await put_into(mongo, f"p{number:02}-0.1", lock="s9.1", dt=LONG_AGO)
    freed = await asyncio.gather(*(one.sweep(100) for one in daemons))
    assert sum(freed) == 40
    assert {row["recoveries"] for row in await all_stored(mongo)} == {1}


# The clock.


def _moments(value: Any) -> list[datetime]:
    """Every time of day in a command."""
    if isinstance(value, datetime):
        return [value]
    inner = list(value.values()) if isinstance(value, dict) else value
    return [found for one in inner for found in _moments(one)] if isinstance(inner, list) else []


Verb = Callable[[MongoBatches, MongoDaemons], Coroutine[Any, Any, Any]]
SYSID = Sysid(slot=1, epoch=1)
VERBS: dict[str, Verb] = {
    "claim": lambda batches, _: batches.claim(RESIZE, LEASE_S),
    "claim_expired": lambda batches, _: batches.claim_expired(RESIZE, LEASE_S),
    "renew": lambda batches, _: batches.renew(["b-0.1"], LEASE_S),
    "sweep": lambda batches, _: batches.sweep(100),
    "reserve": lambda _, daemons: daemons.reserve({}, LEASE_S),
    "renew_sysid": lambda _, daemons: daemons.renew_sysid(SYSID, LEASE_S),
    "release": lambda _, daemons: daemons.release(SYSID),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_no_lease_is_reckoned_with_a_daemons_clock(
    mongo: Mongo, batches: MongoBatches, verb: str
) -> None:
    """A daemon whose clock is wrong cannot say so: no verb sends the server a time."""
    daemons = MongoDaemons(mongo)
    await daemons.reserve({"host": "here"}, LEASE_S)
    await lapsed(mongo, batches, new_batch("a"))
    await held(batches, new_batch("b"))
    await batches.add([new_batch("c", window_s=0.0)])
    before = await all_stored(mongo), await mongo.collection("daemons").find().to_list()
    commands = [one["command"] for one in await watched(mongo, VERBS[verb](batches, daemons))]
    after = await all_stored(mongo), await mongo.collection("daemons").find().to_list()
    assert commands
    assert _moments(commands) == []
    assert before != after  # or it was not tried at all


async def test_a_pause_before_the_next_run_is_reckoned_with_the_servers_clock(
    mongo: Mongo, batches: MongoBatches
) -> None:
    batch = await held(batches, new_batch("p"))
    settlement = verdict_on(batch, done=0)
    commands = [one["command"] for one in await watched(mongo, batches.settle([settlement]))]
    assert commands
    assert _moments(commands) == []
