"""The fast lane: batches that were run straight from the journal come in as they have ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queue_service import clock
from queue_service.batch import DONE, Batch, NewBatch, Settlement, taken
from queue_service.store.batches import MongoBatches
from queue_service.store.mongo import Mongo
from queue_service.store.results import MongoResults
from runners.base import Bad
from tests.store.support import (
    LEASE_S,
    LONG_AGO,
    RESIZE,
    all_stored,
    claimed,
    counts_of,
    held,
    new_batch,
    put_into,
    stored,
    verdict_on,
    watched,
)


def run_unstored(new: NewBatch, *bad: Bad) -> tuple[Batch, Settlement]:
    """What the daemon that accepted a batch makes of it without asking the store."""
    batch = taken(new, "s1.1", clock.now())
    return batch, replace(verdict_on(batch, *bad), unstored=new)


async def test_an_unstored_batch_is_inserted_in_its_final_state_by_one_write(
    mongo: Mongo, batches: MongoBatches, results: MongoResults
) -> None:
    new = new_batch("p")
    _, settlement = run_unstored(new, Bad(2, 404))
    (insert,) = await watched(mongo, batches.settle([settlement]))
    assert insert["command"]["insert"] == "batches"
    assert insert["command"]["writeConcern"] == {"w": "majority"}
    assert (await stored(mongo, new.id))["lock"] == DONE
    ((seen, payload),) = await results.job("acme", "p", 2)
    assert (seen.finished, payload) == (settlement.finished, b"p-2")
    assert await counts_of(results) == {"resize": {"ok": 2, "failed": 1}}
    assert await batches.claim(RESIZE, LEASE_S) is None


async def test_a_batch_looks_the_same_whichever_way_it_came(
    mongo: Mongo, batches: MongoBatches
) -> None:
    new, finish = new_batch("p"), clock.now()
    await batches.settle([verdict_on(await held(batches, new), Bad(2, 404), now=finish)])
    slow = await stored(mongo, new.id)
    await mongo.collection("batches").delete_many({})
    batch, _ = run_unstored(new)
    settlement = replace(verdict_on(batch, Bad(2, 404), now=finish), unstored=new)
    assert await batches.settle([settlement]) == [True]
    fast = await stored(mongo, new.id)
    timing = ("claim_dt", "wait_s")
    assert fast.keys() == slow.keys()
    assert {k: v for k, v in fast.items() if k not in timing} == {
        k: v for k, v in slow.items() if k not in timing
    }


async def test_inserting_again_because_no_answer_came_changes_nothing(
    mongo: Mongo, batches: MongoBatches, results: MongoResults
) -> None:
    _, settlement = run_unstored(new_batch("p"), Bad(2, 404))
    assert await batches.settle([settlement]) == [True]
    before = await all_stored(mongo), await counts_of(results)
    assert await batches.settle([settlement]) == [True]
    assert (await all_stored(mongo), await counts_of(results)) == before


async def test_a_batch_that_was_put_there_by_a_write_without_answer_is_ended_there(
    mongo: Mongo, batches: MongoBatches
) -> None:
    new = new_batch("p")
    batch, settlement = run_unstored(new)
    await batches.add_held(new, batch.fence, LEASE_S)
    assert await batches.settle([settlement]) == [True]
    (row,) = await all_stored(mongo)
    assert (row["lock"], row["out"]) == (DONE, b'{"n":0}\n{"n":1}\n{"n":2}\n')


@pytest.mark.checklist("M70")
async def test_a_batch_that_was_put_there_and_taken_over_is_left_alone(
    mongo: Mongo, batches: MongoBatches, rival: MongoBatches
) -> None:
    new = new_batch("p")
    batch, settlement = run_unstored(new)
    await batches.add_held(new, batch.fence, LEASE_S)
    await put_into(mongo, new.id, dt=LONG_AGO)
    assert await rival.sweep(100) == 1
    theirs = await claimed(rival)
    before = await all_stored(mongo)
    assert await batches.settle([settlement]) == [False]
    assert await all_stored(mongo) == before
    assert await rival.settle([verdict_on(theirs)]) == [True]


@pytest.mark.checklist("M2", "M70")
async def test_a_batch_that_somebody_else_stored_as_waiting_is_left_alone(
    mongo: Mongo, batches: MongoBatches, rival: MongoBatches
) -> None:
    new = new_batch("p")
    await rival.add([new])
    before = await all_stored(mongo)
    assert await batches.settle([run_unstored(new)[1]]) == [False]
    assert await all_stored(mongo) == before


async def test_a_group_knows_which_of_its_batches_took_effect(
    mongo: Mongo, batches: MongoBatches, rival: MongoBatches
) -> None:
    fresh = [run_unstored(new_batch(post))[1] for post in ("a", "b", "c")]
    foreign = run_unstored(new_batch("foreign"))[1]
    await rival.add([new_batch("foreign")])
    assert await batches.settle(fresh[:1]) == [True]
    waiting = verdict_on(await held(batches, new_batch("w", jobtype=replace(RESIZE, type="w"))))
    retried = verdict_on(
        await held(batches, new_batch("r", jobtype=replace(RESIZE, type="r"))), Bad(0, 100)
    )
    group = [fresh[1], foreign, fresh[0], retried, fresh[2], waiting]
    assert await batches.settle(group) == [True, False, True, True, True, True]
    locks = {row["_id"]: row["lock"] for row in await all_stored(mongo)}
    assert {id_ for id_, lock in locks.items() if lock == DONE} == {
        "a-0.1",
        "b-0.1",
        "c-0.1",
        "r-0.1",
        "w-0.1",
    }
    assert locks["foreign-0.1"] == ""


async def test_what_has_not_ended_cannot_be_inserted_as_ended(batches: MongoBatches) -> None:
    new = new_batch("p")
    batch = taken(new, "s1.1", clock.now())
    with pytest.raises(ValueError, match="has not ended"):
        await batches.settle([replace(verdict_on(batch, done=0), unstored=new)])


async def test_an_unstored_batch_with_successors_is_not_mistaken_for_one_taken_over(
    mongo: Mongo, batches: MongoBatches
) -> None:
    """Whether it is stored or refused: False would mean that somebody else has it."""
    _, settlement = run_unstored(new_batch("p"), Bad(1, 100))
    assert settlement.successors
    try:
        took_effect = await batches.settle([settlement])
    except ValueError:
        return
    assert took_effect == [True]
    assert [row["_id"] for row in await all_stored(mongo)] == ["p-0.1", "p-1.2"]
