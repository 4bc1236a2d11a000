"""A daemon that comes back late: its batch was taken over, and what it writes matches nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from queue_service.batch import Batch, Settlement
from queue_service.store.batches import MongoBatches
from queue_service.store.mongo import Mongo
from queue_service.store.results import MongoResults
from runners.base import Bad, StopReason
from tests.store.support import (
    LEASE_S,
    RESIZE,
    all_stored,
    claimed,
    counts_of,
    lapsed,
    new_batch,
    verdict_on,
)

NEW = new_batch("p", lines=4)
Ending = Callable[[Batch], Settlement]
ENDINGS: dict[str, Ending] = {
    "done": verdict_on,
    "retried": lambda batch: verdict_on(batch, Bad(1, 100), Bad(2, 500)),
    "narrowed": lambda batch: verdict_on(batch, done=2, stop=StopReason.BUDGET),
    "returned": lambda batch: verdict_on(batch, done=0),
    "unstored": lambda batch: replace(verdict_on(batch), unstored=NEW),
}
endings = pytest.mark.parametrize("ending", ENDINGS)


async def lost(mongo: Mongo, batches: MongoBatches, rival: MongoBatches) -> Batch:
    """Claim a batch and let its lease end unnoticed; another daemon sweeps it."""
    batch = await lapsed(mongo, batches, NEW)
    assert await rival.sweep(100) == 1
    return batch


@pytest.mark.checklist("M12", "M70")
@endings
async def test_nothing_is_written_to_a_batch_that_another_daemon_runs(
    mongo: Mongo, batches: MongoBatches, rival: MongoBatches, ending: str
) -> None:
    late = await lost(mongo, batches, rival)
    theirs = await claimed(rival)
    before = await all_stored(mongo)
    assert await batches.renew([late.fence.id], LEASE_S) == set()
    assert await batches.settle([ENDINGS[ending](late)]) == [False]
    assert await all_stored(mongo) == before
    assert await rival.settle([verdict_on(theirs)]) == [True]


@pytest.mark.checklist("M70")
@endings
async def test_nothing_is_written_to_a_batch_that_waits_for_its_next_run(
    mongo: Mongo, batches: MongoBatches, rival: MongoBatches, ending: str
) -> None:
    late = await lost(mongo, batches, rival)
    before = await all_stored(mongo)
    assert await batches.settle([ENDINGS[ending](late)]) == [False]
    assert await all_stored(mongo) == before
    assert await rival.claim(RESIZE, LEASE_S) is not None


@pytest.mark.checklist("M40", "M70")
@endings
async def test_a_result_that_is_there_never_changes(
    mongo: Mongo, batches: MongoBatches, rival: MongoBatches, results: MongoResults, ending: str
) -> None:
    late = await lost(mongo, batches, rival)
    theirs = verdict_on(await claimed(rival), Bad(0, 404), out=b"theirs\n" * 4)
    assert await rival.settle([theirs]) == [True]
    before = await all_stored(mongo), await counts_of(results)
    assert await batches.settle([ENDINGS[ending](late)]) == [False]
    assert (await all_stored(mongo), await counts_of(results)) == before


@pytest.mark.checklist("M70")
@endings
async def test_a_daemon_does_not_take_its_new_claim_for_its_old_one(
    mongo: Mongo, batches: MongoBatches, rival: MongoBatches, ending: str
) -> None:
    late = await lost(mongo, batches, rival)
    again = await claimed(batches)
    assert again.fence.lock == late.fence.lock
    before = await all_stored(mongo)
    assert await batches.settle([ENDINGS[ending](late)]) == [False]
    assert await all_stored(mongo) == before
    assert await batches.settle([ENDINGS[ending](again)]) == [True]
    assert await batches.settle([ENDINGS[ending](late)]) == [False]


@endings
async def test_a_daemon_that_is_late_but_was_not_missed_still_settles(
    mongo: Mongo, batches: MongoBatches, ending: str
) -> None:
    late = await lapsed(mongo, batches, NEW)
    assert await batches.settle([ENDINGS[ending](late)]) == [True]
    assert await batches.sweep(100) == 0
