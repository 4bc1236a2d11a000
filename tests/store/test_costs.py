"""What the hot questions cost, by the server's own profiler: not more for a large archive."""

from __future__ import annotations

from typing import Any

import pytest

from queue_service.store.batches import MongoBatches
from queue_service.store.mongo import Mongo
from queue_service.store.results import MongoResults
from tests.store.support import FAR_AWAY, LONG_AGO, archived, claimed, new_batch, watched

CLAIM = "IXSCAN { tenant: 1, type: 1, prio: -1, dt: 1, n: 1, lock: 1 }"
WAITING = "IXSCAN { lock: 1, dt: 1, tenant: 1, type: 1, n: 1 }"
HELD = "IXSCAN { dt: 1, lock: 1 }"


def cost_of(command: dict[str, Any]) -> tuple[str, int, int]:
    return command["planSummary"], command["keysExamined"], command["docsExamined"]


@pytest.mark.checklist("M18")
async def test_the_archive_makes_neither_claims_nor_looking_nor_sweeping_dearer(
    mongo: Mongo, batches: MongoBatches
) -> None:
    costs = []
    for size in (10, 2990):
        await batches.settle([archived(f"{size}.{n}", lines=1) for n in range(size)])
        await batches.add([new_batch(f"live{size}.{n}") for n in range(3)])
        (looking,) = await watched(mongo, batches.waiting())
        (claiming,) = await watched(mongo, claimed(batches))
        sweeping, *_ = await watched(mongo, batches.sweep(100))
        costs.append([cost_of(looking), cost_of(claiming), cost_of(sweeping)])
        while await batches.claim(new_batch("p").jobtype, 60.0):
            pass
        await mongo.collection("batches").delete_many({"done_dt": {"$exists": False}})
    assert await mongo.collection("batches").count_documents({"lock": "__done"}) == 3000
    few, many = costs
    assert many == few
    assert [plan for plan, _, _ in few] == [WAITING, CLAIM, HELD]
    assert few[1][1:] == (1, 1)


@pytest.mark.checklist("M18")
async def test_a_claim_reads_one_batch_however_many_wait_or_are_deferred(
    mongo: Mongo, batches: MongoBatches
) -> None:
    await batches.add([new_batch(f"later{n}", priority=60, dt=FAR_AWAY) for n in range(300)])
    await batches.add([new_batch(f"now{n}", priority=40) for n in range(300)])
    (claiming,) = await watched(mongo, claimed(batches))
    plan, keys, documents = cost_of(claiming)
    # One key more per priority: the step over the deferred ones.
    assert (plan, documents) == (CLAIM, 1)
    assert keys <= 5


async def test_the_waiting_list_is_answered_from_the_index_alone(
    mongo: Mongo, batches: MongoBatches
) -> None:
    """Or it reads every payload that waits, to count them."""
    await batches.add([new_batch(f"p{n}") for n in range(20)])
    (looking,) = await watched(mongo, batches.waiting())
    assert cost_of(looking)[2] == 0


async def test_the_scoreboard_does_not_read_the_archive(
    mongo: Mongo, batches: MongoBatches, results: MongoResults
) -> None:
    await batches.settle([archived(f"q{n}", done=LONG_AGO) for n in range(200)])
    assert await batches.fold(1000) == 200
    await batches.add([new_batch("p")])
    done = await watched(mongo, results.scoreboard("acme"))
    assert sum(one["docsExamined"] for one in done) < 10


async def test_what_is_not_folded_yet_is_added_up_from_the_index_alone(
    mongo: Mongo, batches: MongoBatches, results: MongoResults
) -> None:
    """Or it reads every result block, to count them."""
    await batches.settle([archived(f"q{n}") for n in range(20)])
    done = await watched(mongo, results.scoreboard("acme"))
    (adding,) = [one for one in done if one["command"].get("hint") == "metered"]
    assert cost_of(adding)[1] >= 20
    assert cost_of(adding)[2] == 0
