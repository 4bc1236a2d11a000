"""The scoreboard: exact at all times, whatever is settled, folded, purged or done twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from handlers.names import JobType
from queue_service import clock
from queue_service.store.batches import MongoBatches
from queue_service.store.mongo import Mongo
from queue_service.store.results import MongoResults
from runners.base import Bad
from tests.store.support import (
    FAR_AWAY,
    LEASE_S,
    LONG_AGO,
    RESIZE,
    all_stored,
    archived,
    claimed,
    counts_of,
    daemon,
    ended,
    held,
    new_batch,
    put_into,
    verdict_on,
)
from tests.waiting import eventually

CRASH = JobType("acme", "crash")
FOREIGN = JobType("beta", "resize")


def ago(seconds: float) -> datetime:
    return clock.now() - timedelta(seconds=seconds)


async def ids_left(mongo: Mongo) -> list[str]:
    return [row["_id"].partition("-")[0] for row in await all_stored(mongo)]


# Jobs now.


@pytest.mark.checklist("M46", "M81")
async def test_jobs_are_counted_by_type_where_they_stand(
    batches: MongoBatches, results: MongoResults
) -> None:
    assert await counts_of(results) == {}
    await held(batches, new_batch("a", lines=4))
    await batches.add(
        [
            new_batch("b", lines=5),
            new_batch("c", lines=2, dt=FAR_AWAY),
            new_batch("d", lines=1, jobtype=CRASH),
            new_batch("e", lines=9, jobtype=FOREIGN),
        ]
    )
    await ended(batches, new_batch("f", lines=6, jobtype=CRASH, priority=90), Bad(0, 400))

    async def exact() -> bool:
        return await counts_of(results) == {
            "crash": {"waiting": 1, "ok": 5, "failed": 1},
            "resize": {"waiting": 5, "deferred": 2, "running": 4},
        }

    await eventually(exact, within_s=5.0)  # a claim may be a moment old before a majority has it
    assert await counts_of(results, "beta") == {"resize": {"waiting": 9}}
    assert await counts_of(results, "nobody") == {}


@pytest.mark.checklist("M46", "M81")
async def test_every_attempt_is_counted_with_the_code_it_ended_with(
    mongo: Mongo, batches: MongoBatches, results: MongoResults
) -> None:
    await ended(batches, new_batch("p", lines=10), Bad(0, 100), Bad(1, 404), Bad(2, 500))
    assert await counts_of(results) == {
        "resize": {"deferred": 2, "ok": 7, "failed": 1, "retry": 1, "error": 1}
    }
    await put_into(mongo, "p-0.2", dt=LONG_AGO)
    await batches.settle([verdict_on(await claimed(batches), Bad(1, 503))])
    assert await counts_of(results) == {
        "resize": {"deferred": 1, "ok": 8, "failed": 1, "retry": 1, "error": 2}
    }


async def test_recent_times_are_shown_by_type(batches: MongoBatches, results: MongoResults) -> None:
    await batches.settle([archived("a"), archived("b"), archived("old", done=ago(120.0))])
    (row,) = await results.scoreboard("acme")
    assert (row.jobs_last_minute, list(row.run_s), len(row.wait_s)) == (6, [0.5, 0.5], 2)
    assert row.codes["ok"] == 9


# Folding.


@pytest.mark.checklist("M46", "M81")
async def test_the_counts_stay_the_same_through_fold_and_purge(
    mongo: Mongo, batches: MongoBatches, results: MongoResults
) -> None:
    await batches.settle(
        [archived(f"a{n}", Bad(0, 404), Bad(1, 100 if n % 2 else 500)) for n in range(10)]
        + [archived(f"c{n}", jobtype=CRASH, done=ago(30.0)) for n in range(4)]
        + [archived("b", jobtype=FOREIGN, done=ago(30.0))]
    )
    resize = {"ok": 10, "failed": 10, "retry": 5, "error": 5}
    expected = {"resize": resize, "crash": {"ok": 12}}
    for limit in (7, 100, 100):
        assert await counts_of(results) == expected
        await batches.fold(limit)
        assert await counts_of(results) == expected
        await batches.purge(10.0, 3)
    assert await counts_of(results) == expected
    assert await counts_of(results, "beta") == {"resize": {"ok": 3}}
    assert not {"b", "c0", "c1", "c2", "c3"} & set(await ids_left(mongo))
    await batches.settle([archived("later")])
    assert await batches.fold(100) == 1
    assert await counts_of(results) == expected | {"resize": resize | {"ok": 13}}


@pytest.mark.checklist("M46")
async def test_a_batch_is_folded_once_and_a_fold_is_bounded(batches: MongoBatches) -> None:
    await batches.settle([archived(f"p{n}") for n in range(5)])
    assert [await batches.fold(2) for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.checklist("M21", "M46")
async def test_daemons_that_fold_at_once_count_nothing_twice(
    mongo: Mongo, results: MongoResults
) -> None:
    daemons = [daemon(mongo, slot) for slot in (1, 2, 3, 4)]
    left = [archived(f"p{n}", Bad(0, 404), lock="s9.1", done=ago(90.0)) for n in range(40)]
    await daemons[0].settle(left)
    folded = await asyncio.gather(*(one.fold(25) for one in daemons for _ in range(2)))
    assert sum(folded) == 40
    assert await counts_of(results) == {"resize": {"ok": 80, "failed": 40}}
    rows = await mongo.collection("counts").find().to_list()
    assert sum(row["ok"] for row in rows) == 80


async def test_a_daemon_leaves_what_is_fresh_to_the_one_that_ended_it(
    batches: MongoBatches, rival: MongoBatches
) -> None:
    await batches.settle([archived("fresh"), archived("lying", done=ago(90.0))])
    assert await rival.fold(100) == 1
    assert await batches.fold(100) == 1


@pytest.mark.checklist("M46", "M77")
async def test_what_was_used_adds_up_to_the_microsecond_through_fold_and_purge(
    batches: MongoBatches, results: MongoResults
) -> None:
    """A third of a second is no binary fraction: sums of floats would depend on their order."""
    ends = []
    for n in range(30):
        end = archived(f"p{n}", done=ago(30.0))
        assert end.finished is not None
        load_s = 2.000001 if n % 10 == 0 else 0.0
        used = replace(end.finished, run_s=1 / 3, cpu_s=0.1, load_s=load_s, load_cpu_s=load_s // 2)
        ends.append(replace(end, finished=used))
    await batches.settle(ends)
    # A load is charged whole to the batch that came first: 3 did, 27 found a warm context.
    expected = {"run": 9.99999, "cpu": 6.0, "load": 6.000003}
    for limit in (7, 100, 100):
        (row,) = await results.scoreboard("acme")
        assert row.used_s == expected
        await batches.fold(limit)
        await batches.purge(10.0, 4)


# Purging.


@pytest.mark.checklist("M17")
async def test_purged_is_what_was_done_long_ago_and_is_folded(
    mongo: Mongo, batches: MongoBatches
) -> None:
    await batches.settle([archived("old", done=ago(3700.0)), archived("young", done=ago(3500.0))])
    assert await batches.fold(100) == 2
    await batches.settle([archived("unfolded", done=ago(3700.0))])
    assert await batches.purge(3600.0, 100) == 1
    assert await ids_left(mongo) == ["unfolded", "young"]
    assert await batches.fold(100) == 1
    assert await batches.purge(3600.0, 100) == 1
    assert await ids_left(mongo) == ["young"]


@pytest.mark.checklist("M17", "M94")
async def test_what_has_not_ended_is_never_purged_however_old_it_is(
    mongo: Mongo, batches: MongoBatches
) -> None:
    await batches.add([new_batch(p, created=LONG_AGO) for p in ("due", "later", "runs", "parked")])
    await put_into(mongo, "due-0.1", dt=LONG_AGO)
    await put_into(mongo, "later-0.1", dt=FAR_AWAY)
    await put_into(mongo, "runs-0.1", lock="s9.1", dt=LONG_AGO)
    await put_into(mongo, "parked-0.1", lock="__paused", dt=LONG_AGO, done_dt=LONG_AGO)
    assert await batches.purge(0.0, 100) == 0
    assert await ids_left(mongo) == ["due", "later", "parked", "runs"]


async def test_a_purge_is_bounded(batches: MongoBatches) -> None:
    await batches.settle([archived(f"p{n}", done=ago(60.0)) for n in range(5)])
    await batches.fold(100)
    assert [await batches.purge(1.0, 2) for _ in range(4)] == [2, 2, 1, 0]


# At all times.


@pytest.mark.checklist("M46", "M81")
async def test_the_scoreboard_is_exact_while_everything_moves(
    mongo: Mongo, batches: MongoBatches, results: MongoResults
) -> None:
    """Every job is counted once: as waiting, as running or by the code of its only attempt."""
    await batches.add([new_batch(f"p{n}", lines=5, retries=0) for n in range(60)])
    daemons = [daemon(mongo, slot) for slot in (1, 2)]

    async def work(one: MongoBatches, bad: tuple[Bad, ...]) -> None:
        while batch := await one.claim(RESIZE, LEASE_S):
            await one.settle([verdict_on(batch, *bad, now=ago(1.0))])

    async def tidy(one: MongoBatches) -> None:
        while not all(worker.done() for worker in workers):
            await one.fold(3)
            await one.purge(0.0, 2)

    async with asyncio.TaskGroup() as group:
        workers = [
            group.create_task(work(daemons[0], (Bad(0, 500), Bad(1, 404)))),
            group.create_task(work(daemons[1], (Bad(3, 100),))),
        ]
        tidiers = [group.create_task(tidy(one)) for one in daemons]
        seen = []
        while not all(task.done() for task in workers + tidiers):
            seen.append(await counts_of(results))
    totals = [sum(counts["resize"].values()) for counts in seen]
    assert len(seen) > 3
    assert set(totals) == {300}
    assert any(counts["resize"].get("running") for counts in seen)
