"""Answers that are lost or say no: a verb whose write is in doubt says so, and may be repeated.

With a mongod of its own whose failpoints are enabled. A write concern that is not satisfied comes
with a write that was done all the same: for the caller that is an answer lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from queue_service import clock
from queue_service.batch import Batch, Settlement, taken
from queue_service.errors import StoreUnavailable
from queue_service.store.batches import MongoBatches
from queue_service.store.embedded import EmbeddedMongod, EmbeddedSettings
from queue_service.store.mongo import Mongo
from queue_service.store.mongod_binary import find
from queue_service.store.results import MongoResults
from runners.base import Bad, StopReason
from tests.store.support import (
    LEASE_S,
    RESIZE,
    all_stored,
    archived,
    claimed,
    counts_of,
    daemon,
    empty,
    held,
    new_batch,
    verdict_on,
)
from tests.waiting import eventually

# What a server says that has done a write but could not see a majority get it in time.
NO_MAJORITY = {"writeConcernError": {"code": 50, "errmsg": "operation exceeded time limit"}}
HANGS_UP = {"closeConnection": True}


@pytest.fixture(scope="module")
async def failing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The URI of a mongod that can be told to fail."""
    home = tmp_path_factory.mktemp("failing")
    binary, wrapper = await find(None), home / "mongod"
    wrapper.write_text(
        f'#!/bin/sh\nexec "{binary.path}" --setParameter enableTestCommands=1 "$@"\n'
    )
    wrapper.chmod(0o755)
    async with EmbeddedMongod(EmbeddedSettings(data=home, mongod=wrapper)) as server:
        async with Mongo(server.uri, "hearth", 10.0) as connected:
            await connected.prepare()
        yield server.uri


@pytest.fixture
async def mongo(failing: str) -> AsyncIterator[Mongo]:
    async with Mongo(failing, "hearth", 10.0) as connected:
        yield connected
        await empty(connected)


@asynccontextmanager
async def failpoint(mongo: Mongo, *commands: str, **how: Any) -> AsyncIterator[None]:
    """Let the next of these commands fail, in this way."""
    point: dict[str, Any] = {"configureFailPoint": "failCommand"}
    data = {"failCommands": list(commands), "appName": "hearth", **how}
    before = await mongo.client.admin.command(point | {"mode": {"times": 1}, "data": data})
    try:
        yield
    finally:
        after = await mongo.client.admin.command(point | {"mode": "off"})
    assert after["count"] > before["count"]  # or nothing has failed


# Writes without a majority.

Write = Callable[[MongoBatches], Awaitable[Any]]


async def _hold(batches: MongoBatches) -> None:
    new = new_batch("p")
    await batches.add_held(new, taken(new, "s1.1", clock.now()).fence, LEASE_S)


WRITES: dict[str, tuple[str, Write]] = {
    "add": ("insert", lambda batches: batches.add([new_batch("p")])),
    "add beside one that is there": (
        "insert",
        lambda batches: batches.add([new_batch("there"), new_batch("p")]),
    ),
    "add_held": ("update", _hold),
    "settle, unstored": ("insert", lambda batches: batches.settle([archived("p")])),
    "move_marks": ("update", lambda batches: batches.move_marks({"one": 7})),
}


@pytest.mark.parametrize("write", WRITES)
async def test_a_write_that_no_majority_has_is_not_taken_for_done(
    mongo: Mongo, batches: MongoBatches, write: str
) -> None:
    """The journal's read point moves behind what is stored: a rollback would lose it for good."""
    await batches.add([new_batch("there")])
    command, verb = WRITES[write]
    async with failpoint(mongo, command, **NO_MAJORITY):
        with pytest.raises(StoreUnavailable):
            await verb(batches)
    await verb(batches)


# Settlements.

Ending = Callable[[Batch], Settlement]
ENDINGS: dict[str, tuple[str, Ending]] = {
    "done": ("update", verdict_on),
    "retried": ("commitTransaction", lambda batch: verdict_on(batch, Bad(1, 100))),
    "narrowed": (
        "commitTransaction",
        lambda batch: verdict_on(batch, done=1, stop=StopReason.BUDGET),
    ),
}


@pytest.mark.checklist("M46")
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_settlement_whose_answer_was_lost_is_recognised_as_our_own(
    mongo: Mongo, batches: MongoBatches, results: MongoResults, ending: str
) -> None:
    command, end = ENDINGS[ending]
    settlement = end(await held(batches, new_batch("p")))
    async with failpoint(mongo, command, **NO_MAJORITY):
        with pytest.raises(StoreUnavailable):
            await batches.settle([settlement])

    async def was_done() -> bool:
        return "ok" in (await counts_of(results))["resize"]

    await eventually(was_done)
    before = await all_stored(mongo), await counts_of(results)
    assert await batches.settle([settlement]) == [True]
    assert (await all_stored(mongo), await counts_of(results)) == before


@asynccontextmanager
async def majority_lags(mongo: Mongo) -> AsyncIterator[None]:
    """What is written now is not seen by those who read what a majority has."""
    point = {"configureFailPoint": "disableSnapshotting"}
    await mongo.client.admin.command(point | {"mode": "alwaysOn"})
    try:
        yield
    finally:
        await mongo.client.admin.command(point | {"mode": "off"})
        await mongo.collection("nudge").insert_one({})  # a majority is counted with the next write


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_settlement_that_no_majority_has_yet_is_not_taken_for_lost(
    failing: str, mongo: Mongo, batches: MongoBatches, ending: str
) -> None:
    """As long as that is not known, the answer is that it is not; never that it was in vain."""
    command, end = ENDINGS[ending]
    settlement = end(await held(batches, new_batch("p")))
    async with Mongo(failing, "hearth", 1.0) as impatient:
        async with majority_lags(mongo):
            async with failpoint(mongo, command, **NO_MAJORITY):
                with pytest.raises(StoreUnavailable):
                    await daemon(impatient).settle([settlement])
            with suppress(StoreUnavailable):
                assert await daemon(impatient).settle([settlement]) == [True]
        assert await daemon(impatient).settle([settlement]) == [True]


@pytest.mark.checklist("M46")
async def test_a_fold_whose_answer_was_lost_counts_nothing_twice(
    mongo: Mongo, batches: MongoBatches, results: MongoResults
) -> None:
    assert all(await batches.settle([archived(f"p{n}", Bad(0, 404)) for n in range(5)]))
    before = await counts_of(results)
    async with failpoint(mongo, "commitTransaction", **NO_MAJORITY):
        with pytest.raises(StoreUnavailable):
            await batches.fold(100)
    assert await counts_of(results) == before
    await batches.fold(100)
    assert await counts_of(results) == before == {"resize": {"ok": 10, "failed": 5}}


@pytest.mark.checklist("M67")
@pytest.mark.parametrize("command", ["update", "insert", "commitTransaction"])
async def test_a_transaction_that_breaks_off_is_begun_again_or_goes_on(
    mongo: Mongo, batches: MongoBatches, command: str
) -> None:
    settlement = verdict_on(await held(batches, new_batch("p")), Bad(1, 100))
    async with failpoint(mongo, command, **HANGS_UP):
        assert await batches.settle([settlement]) == [True]
    assert [row["_id"] for row in await all_stored(mongo)] == ["p-0.1", "p-1.2"]


@pytest.mark.checklist("M67")
@pytest.mark.parametrize("command", ["update", "insert", "commitTransaction"])
async def test_a_batch_and_its_successors_are_stored_together_or_not_at_all(
    mongo: Mongo, batches: MongoBatches, command: str
) -> None:
    settlement = verdict_on(await held(batches, new_batch("p")), Bad(1, 100))
    before = await all_stored(mongo)
    async with failpoint(mongo, command, errorCode=8):
        with pytest.raises(Exception, match="failCommand"):
            await batches.settle([settlement])
    # A transaction whose commit was refused would hold on to the batch for a minute.
    await mongo.client.admin.command({"killAllSessions": []})
    assert await all_stored(mongo) == before
    assert await batches.settle([settlement]) == [True]
    assert [row["_id"] for row in await all_stored(mongo)] == ["p-0.1", "p-1.2"]


# A connection that breaks.


@pytest.mark.checklist("M2", "M9")
async def test_a_connection_that_breaks_costs_neither_a_batch_nor_a_claim(
    mongo: Mongo, batches: MongoBatches, rival: MongoBatches
) -> None:
    async with failpoint(mongo, "insert", **HANGS_UP):
        await batches.add([new_batch("p")])
    async with failpoint(mongo, "findAndModify", **HANGS_UP):
        batch = await claimed(batches)
    assert batch.fence.gen == 1
    assert await rival.claim(RESIZE, LEASE_S) is None
    async with failpoint(mongo, "update", **HANGS_UP):
        assert await batches.settle([verdict_on(batch)]) == [True]
    assert len(await all_stored(mongo)) == 1


async def test_a_claim_whose_answer_was_lost_comes_back_when_its_lease_ends(
    mongo: Mongo, batches: MongoBatches, rival: MongoBatches
) -> None:
    """The daemon does not know that it holds it, so it does not renew it either."""
    await batches.add([new_batch("p")])
    async with failpoint(mongo, "findAndModify", **NO_MAJORITY):
        with pytest.raises(StoreUnavailable):
            await batches.claim(RESIZE, 0.0)
    (row,) = await all_stored(mongo)
    assert row["lock"] == "s1.1"

    async def is_freed() -> bool:
        return await rival.sweep(100) == 1

    await eventually(is_freed)
    assert (await claimed(rival)).fence.gen == 2
