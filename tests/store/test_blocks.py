"""Blocks over the document limit: kept apart, read as one with their batch, gone with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bson import encode

from queue_service import clock
from queue_service.batch import taken
from queue_service.store.base import Wanted
from queue_service.store.batches import MongoBatches
from queue_service.store.blobs import INLINE_MAX_BYTES
from queue_service.store.mongo import Mongo
from queue_service.store.results import MongoResults
from runners.base import Bad, StopReason
from tests.store.support import (
    LONG_AGO,
    RESIZE,
    claimed,
    ended,
    held,
    lapsed,
    new_batch,
    put_into,
    stored,
    verdict_on,
)

MIB = 1 << 20
SMALL = 1000
# Not all alike, so that a chunk in the wrong place would show.
DIGITS = b"".join(b"%09d," % n for n in range(16 * MIB // 10 + 1))
LINE = DIGITS[: 16 * MIB - 1] + b"\n"
RESULT = b'"' + DIGITS[: 16 * MIB - 3] + b'"\n'


def lines(count: int, size: int) -> bytes:
    return b"".join(b"%d" % n + b"x" * (size - 2) + b"\n" for n in range(count))


async def files(mongo: Mongo) -> int:
    """How much is kept apart: files and the chunks they are made of."""
    names = ("blocks.files", "blocks.chunks")
    return sum([await mongo.collection(name).count_documents({}) for name in names])


async def purge_all(batches: MongoBatches) -> None:
    """Purge all that is done, as if it had been done long ago."""
    await batches.fold(1000)
    await batches.purge(-60.0, 1000)


async def size_of(mongo: Mongo, batch_id: str) -> int:
    return len(encode(await stored(mongo, batch_id)))


@pytest.mark.checklist("M71")
async def test_an_oversized_payload_is_kept_apart_and_handed_out_as_one(
    mongo: Mongo, batches: MongoBatches, results: MongoResults
) -> None:
    new = new_batch("p", lines=1, data=LINE)
    await batches.add([new])
    assert await size_of(mongo, new.id) < SMALL
    assert await files(mongo) > 1
    batch = await claimed(batches)
    assert batch.data == LINE
    ((_, payload),) = await results.job("acme", "p", 0)
    assert payload == LINE[:-1]
    await batches.settle([verdict_on(batch)])
    await purge_all(batches)
    assert await files(mongo) == 0


@pytest.mark.checklist("M88")
async def test_a_result_of_16_mib_comes_back_whole(
    mongo: Mongo, batches: MongoBatches, results: MongoResults
) -> None:
    assert len(RESULT) == 16 * MIB
    await ended(batches, new_batch("p", lines=1), out=RESULT)
    assert await size_of(mongo, "p-0.1") < SMALL
    done = await results.finished("acme", "p-0.1")
    assert done is not None
    assert done.out == RESULT
    ((seen, _),) = await results.job("acme", "p", 0)
    assert seen.finished is not None
    assert seen.finished.out == RESULT
    streamed = [one async for one in results.results("acme", type_=None, codes=(), since=None)]
    assert [one.out == RESULT for one in streamed] == [True]
    (listed,) = await results.batches("acme", Wanted(), None, 9)
    assert listed.finished is not None
    assert listed.finished.out == b""  # a list does not fetch what it does not show
    await purge_all(batches)
    assert (await files(mongo), await results.finished("acme", "p-0.1")) == (0, None)


@pytest.mark.checklist("M71", "M88")
async def test_both_blocks_may_be_oversized_and_come_straight_from_the_journal(
    mongo: Mongo, batches: MongoBatches, results: MongoResults
) -> None:
    new = new_batch("p", lines=1, data=LINE)
    settlement = replace(verdict_on(taken(new, "s1.1", clock.now()), out=RESULT), unstored=new)
    for _ in range(2):  # the second time because no answer came
        assert await batches.settle([settlement]) == [True]
    ((seen, payload),) = await results.job("acme", "p", 0)
    assert seen.finished is not None
    assert (seen.finished.out == RESULT, payload == LINE[:-1]) == (True, True)
    await purge_all(batches)
    assert await files(mongo) == 0


@pytest.mark.parametrize(
    ("size", "apart"), [(INLINE_MAX_BYTES, False), (INLINE_MAX_BYTES + 1, True)]
)
async def test_two_blocks_that_just_fit_stay_in_the_document(
    mongo: Mongo, batches: MongoBatches, results: MongoResults, size: int, apart: bool
) -> None:
    data = b"x" * (size - 1) + b"\n"
    await ended(batches, new_batch("p", lines=1, data=data), out=data)
    assert (await files(mongo) > 0) == apart
    ((seen, payload),) = await results.job("acme", "p", 0)
    assert seen.finished is not None
    assert (seen.finished.out, payload) == (data, data[:-1])


@pytest.mark.checklist("M71", "M86")
async def test_a_batch_that_is_taken_apart_takes_its_oversized_block_along(
    mongo: Mongo, batches: MongoBatches, results: MongoResults
) -> None:
    """Eight MiB is the largest batch of several lines that the settings allow."""
    data = lines(8, MIB)
    first = await held(batches, new_batch("p", lines=8, data=data))
    out = b"x" * (INLINE_MAX_BYTES - 7) + b"\n" * 7
    end = verdict_on(first, Bad(1, 100), done=7, stop=StopReason.OUTPUT, out=out)
    assert await batches.settle([end]) == [True]
    rest = await claimed(batches)
    assert rest.data == data[7 * MIB :]
    await put_into(mongo, "p-1.2", dt=first.ready_dt)
    again = await claimed(batches)
    assert again.data == data[MIB : 2 * MIB]
    for line in range(8):
        _, payload = (await results.job("acme", "p", line))[-1]
        assert payload == data[line * MIB : (line + 1) * MIB - 1]
    assert await batches.settle([verdict_on(rest), verdict_on(again)]) == [True, True]
    await purge_all(batches)
    assert await files(mongo) == 0


@pytest.mark.checklist("M71")
async def test_a_retry_of_an_oversized_payload_has_a_block_of_its_own(
    mongo: Mongo, batches: MongoBatches, results: MongoResults
) -> None:
    await ended(batches, new_batch("p", lines=1, data=LINE), Bad(0, 500))
    await put_into(mongo, "p-0.1", done_dt=LONG_AGO)
    await batches.fold(100)
    assert await batches.purge(3600.0, 100) == 1  # the first attempt alone
    await put_into(mongo, "p-0.2", dt=LONG_AGO)
    again = await claimed(batches)
    assert again.data == LINE
    await batches.settle([verdict_on(again)])
    await purge_all(batches)
    assert await files(mongo) == 0


@pytest.mark.checklist("M17", "M70")
@pytest.mark.parametrize("wrote", ["result", "successor"])
async def test_a_late_daemons_block_does_not_outlive_the_batch(
    mongo: Mongo, batches: MongoBatches, rival: MongoBatches, wrote: str
) -> None:
    """A block is written before the fence is asked: where that says no, it belongs to nobody."""
    new = new_batch("p", lines=1, data=lines(1, 7 * MIB) if wrote == "successor" else b"p-0\n")
    late = await lapsed(mongo, batches, new)
    assert await rival.sweep(100) == 1
    theirs = await claimed(rival)
    bad = (Bad(0, 500),) if wrote == "successor" else ()
    out = lines(1, 7 * MIB) if wrote == "result" else b"1\n"
    assert await batches.settle([verdict_on(late, *bad, out=out)]) == [False]
    assert await rival.settle([verdict_on(theirs)]) == [True]
    assert await rival.claim(RESIZE, 60.0) is None
    await purge_all(rival)
    assert await mongo.collection("batches").count_documents({}) == 0
    assert await files(mongo) == 0


async def test_one_batchs_blocks_are_not_taken_for_anothers(
    mongo: Mongo, batches: MongoBatches
) -> None:
    """Purging p-1.1 must not touch p-1.10, nor what a pattern would make of the dot."""
    big = lines(1, 7 * MIB)
    await ended(batches, new_batch("p", lines=1, data=big))
    for attempt, post in ((10, "p"), (1, "pp"), (1, "p-0"), (1, "xp")):
        await batches.add([new_batch(post, lines=1, data=big, attempt=attempt)])
    await batches.fold(10)
    await batches.purge(-60.0, 10)
    for _ in range(4):
        assert (await claimed(batches)).data == big
