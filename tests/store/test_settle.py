"""Settling: the end of a batch, its retries and leftovers, written all or nothing and only once.

Outdated fences are in `test_late.py`, answers that are lost in `test_lost_answers.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pymongo.errors import PyMongoError

from queue_service import clock
from queue_service.batch import DONE, FREE, Batch, Settlement
from queue_service.store.batches import MongoBatches
from queue_service.store.mongo import Mongo
from queue_service.store.results import MongoResults
from runners.base import Bad, Span, StopReason
from tests.store.support import (
    FAR_AWAY,
    LEASE_S,
    RESIZE,
    RETRY_DELAY_S,
    VERSION,
    all_stored,
    claimed,
    counts_of,
    daemon,
    held,
    ids_of,
    lapsed,
    new_batch,
    put_into,
    stored,
    verdict_on,
    watched,
)


def jobs_in(row: dict[str, Any]) -> list[str]:
    """The job ids that a document names; its payloads must say the same."""
    spans = [Span(post=s["p"], first=s["f"], count=s["e"] - s["f"]) for s in row["spans"]]
    assert row["data"].decode().splitlines() == ids_of(spans)
    assert row["n"] == len(ids_of(spans))
    return ids_of(spans)


# The end.


@pytest.mark.checklist("M15", "M16", "M69")
async def test_a_done_batch_is_archived_readable_and_never_run_again(
    mongo: Mongo, batches: MongoBatches, results: MongoResults
) -> None:
    batch = await held(batches, new_batch("p", lines=2))
    finish = clock.now()
    assert await batches.settle([verdict_on(batch, Bad(1, 404), now=finish)]) == [True]
    row = await stored(mongo, batch.fence.id)
    assert (row["lock"], row["done_dt"]) == (DONE, finish)
    assert row["dt"] == finish.replace(year=finish.year + 1000)
    assert (row["ok"], row["bad"], row["out"]) == (1, [[1, 404, False]], b'{"n":0}\n{"n":1}\n')
    assert jobs_in(row) == ["p-0", "p-1"]
    done = await results.finished("acme", batch.fence.id)
    assert done is not None
    assert (done.out, done.ok, done.handler_version) == (row["out"], 1, VERSION)
    assert await batches.claim(RESIZE, LEASE_S) is None
    assert await batches.sweep(100) == 0
    assert await batches.waiting() == []


@pytest.mark.checklist("M95")
async def test_results_and_release_are_one_write(mongo: Mongo, batches: MongoBatches) -> None:
    """Nobody can see a batch that is released without its results, nor the other way round."""
    settlement = verdict_on(await held(batches, new_batch("p")))
    (update,) = await watched(mongo, batches.settle([settlement]))
    change = update["command"]["u"]["$set"]
    assert (update["op"], change["lock"]) == ("update", DONE)
    assert settlement.finished is not None
    assert change["out"] == settlement.finished.out
    assert change["tally"] == {
        "ok": 3,
        "failed": 0,
        "retry": 0,
        "error": 0,
        "run_us": 500_000,
        "cpu_us": 250_000,
        "load_us": 0,
    }


# Again.


@pytest.mark.checklist("M42", "M43", "M67")
async def test_lines_to_be_tried_again_keep_their_ids_and_come_later(
    mongo: Mongo, batches: MongoBatches
) -> None:
    first = await held(batches, new_batch("p", "q", lines=3))
    finish = clock.now()
    bad = (Bad(1, 100), Bad(3, 500, 5.0), Bad(4, 503), Bad(5, 400))
    assert await batches.settle([verdict_on(first, *bad, now=finish)]) == [True]
    done, *again = sorted(await all_stored(mongo), key=lambda row: (row["attempt"], row["dt"]))
    assert jobs_in(done) == ["p-0", "p-1", "p-2", "q-0", "q-1", "q-2"]
    assert done["bad"] == [[1, 100, True], [3, 500, True], [4, 503, True], [5, 400, False]]
    assert [(row["_id"], jobs_in(row)) for row in again] == [
        ("q-0.2", ["q-0"]),
        ("p-1.2", ["p-1", "q-1"]),
    ]
    for row, pause_s in zip(again, (5.0, RETRY_DELAY_S), strict=True):
        assert (row["lock"], row["gen"], row["attempt"]) == (FREE, 0, 2)
        assert row["dt"] == finish + timedelta(seconds=pause_s)
        assert row["create_dt"] == first.create_dt
    assert await batches.claim(RESIZE, LEASE_S) is None
    await put_into(mongo, "p-1.2", dt=finish)
    second = await claimed(batches)
    assert (second.attempt, second.data) == (2, b"p-1\nq-1\n")


@pytest.mark.checklist("M67")
async def test_a_batch_ends_only_together_with_its_successors(
    mongo: Mongo, batches: MongoBatches
) -> None:
    batch = await held(batches, new_batch("p"))
    # In the way of the successor, so that inserting it fails.
    await batches.add([new_batch(Span(post="p", first=1, count=1), attempt=2, dt=FAR_AWAY)])
    before = await all_stored(mongo)
    with pytest.raises(PyMongoError):
        await batches.settle([verdict_on(batch, Bad(1, 100))])
    assert await all_stored(mongo) == before


@pytest.mark.checklist("M68")
async def test_a_returned_batch_is_claimable_at_once_and_loses_no_attempt(
    mongo: Mongo, batches: MongoBatches, rival: MongoBatches
) -> None:
    first = await held(batches, new_batch("p"))
    assert await batches.settle([verdict_on(first, done=0)]) == [True]
    assert [row["_id"] for row in await all_stored(mongo)] == [first.fence.id]
    again = await claimed(rival)
    assert again.fence.gen == first.fence.gen + 1
    assert (again.attempt, again.data, again.options) == (first.attempt, first.data, first.options)
    assert (again.careful, again.recoveries) == (False, 0)


@pytest.mark.checklist("M68")
@pytest.mark.parametrize(
    ("stop", "pause_s", "careful"),
    [(StopReason.CLOSED, 1.0, False), (StopReason.DIED, 0.0, True), (None, 0.0, False)],
)
async def test_a_returned_batch_may_be_asked_to_pause_or_to_be_watched(
    mongo: Mongo, batches: MongoBatches, stop: StopReason | None, pause_s: float, careful: bool
) -> None:
    batch = await held(batches, new_batch("p"))
    earliest = await mongo.now()
    assert await batches.settle([verdict_on(batch, done=0, stop=stop)]) == [True]
    latest = await mongo.now()
    row = await stored(mongo, batch.fence.id)
    assert (row["lock"], row["careful"]) == (FREE, careful)
    assert earliest <= row["dt"] - timedelta(seconds=pause_s) <= latest


@pytest.mark.checklist("M86")
async def test_a_narrowed_batch_and_its_leftovers_hold_each_line_once(
    mongo: Mongo, batches: MongoBatches
) -> None:
    first = await held(batches, new_batch("p", "q", lines=5))
    settlement = verdict_on(first, Bad(2, 500), done=4, stop=StopReason.BUDGET, run_s=2.0)
    assert await batches.settle([settlement]) == [True]
    rows = {row["_id"]: row for row in await all_stored(mongo)}
    assert {id_: jobs_in(row) for id_, row in rows.items()} == {
        "p-0.1": ["p-0", "p-1", "p-2", "p-3"],
        "p-2.2": ["p-2"],
        "p-4.1": ["p-4", "q-0"],
        "q-1.1": ["q-1", "q-2"],
        "q-3.1": ["q-3", "q-4"],
    }
    assert (rows["p-0.1"]["lock"], rows["p-0.1"]["ok"]) == (DONE, 3)
    leftovers = [await claimed(batches) for _ in range(3)]
    assert {batch.attempt for batch in leftovers} == {1}
    assert await batches.claim(RESIZE, LEASE_S) is None  # the retry comes later


# Several at once.

Ending = Callable[[Batch], Settlement]
ENDINGS: dict[str, Ending] = {
    "done": verdict_on,
    "retried": lambda batch: verdict_on(batch, Bad(1, 100)),
    "narrowed": lambda batch: verdict_on(batch, done=1, stop=StopReason.BUDGET),
    "returned": lambda batch: verdict_on(batch, done=0),
}


@pytest.mark.checklist("M70")
@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_outdated_fence_does_not_spoil_what_is_settled_beside_it(
    mongo: Mongo, batches: MongoBatches, rival: MongoBatches, ending: str
) -> None:
    late = await lapsed(mongo, batches, new_batch("late"))
    assert await rival.sweep(100) == 1
    theirs = await claimed(rival)
    ours = [await held(batches, new_batch(post)) for post in ("a", "b")]
    group = [ENDINGS[ending](ours[0]), verdict_on(late), ENDINGS[ending](ours[1])]
    assert await batches.settle(group) == [True, False, True]
    locks = {row["_id"]: row["lock"] for row in await all_stored(mongo)}
    settled = FREE if ending == "returned" else DONE
    assert (locks["a-0.1"], locks["b-0.1"], locks["late-0.1"]) == (settled, settled, "s2.1")
    assert await rival.settle([verdict_on(theirs)]) == [True]


async def test_a_group_of_all_kinds_is_settled_in_one_call(
    batches: MongoBatches, results: MongoResults
) -> None:
    group = [
        ENDINGS[ending](await held(batches, new_batch(f"{ending}{number}")))
        for number in range(10)
        for ending in ENDINGS
    ]
    assert await batches.settle(group) == [True] * 40
    assert await counts_of(results) == {
        "resize": {"waiting": 10 * (2 + 3), "deferred": 10, "ok": 10 * (3 + 2 + 1), "retry": 10}
    }
    assert await batches.settle([]) == []


# Once.


@pytest.mark.parametrize("ending", ENDINGS)
async def test_settling_again_because_no_answer_came_changes_nothing(
    mongo: Mongo, batches: MongoBatches, results: MongoResults, ending: str
) -> None:
    settlement = ENDINGS[ending](await held(batches, new_batch("p")))
    assert await batches.settle([settlement]) == [True]
    before = await all_stored(mongo), await counts_of(results)
    assert await batches.settle([settlement]) == [True]
    assert (await all_stored(mongo), await counts_of(results)) == before


@pytest.mark.checklist("M46")
@pytest.mark.parametrize("ending", ["done", "retried", "narrowed"])
async def test_settling_again_after_the_counts_were_folded_counts_nothing_twice(
    batches: MongoBatches, results: MongoResults, ending: str
) -> None:
    settlement = ENDINGS[ending](await held(batches, new_batch("p")))
    assert await batches.settle([settlement]) == [True]
    before = await counts_of(results)
    assert await batches.fold(100) == 1
    assert await batches.settle([settlement]) == [True]
    assert await batches.fold(100) == 0
    assert await counts_of(results) == before


async def test_a_daemons_own_end_is_not_taken_for_that_of_its_next_life(
    mongo: Mongo, batches: MongoBatches
) -> None:
    settlement = verdict_on(await held(batches, new_batch("p")))
    assert await batches.settle([settlement]) == [True]
    assert await daemon(mongo, slot=1, epoch=2).settle([settlement]) == [False]
