"""What tenants read: jobs by id through splits and retries, results as pages and streams, lists.

Every question is also asked by another tenant, who must get the answer of an empty store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import orjson
import pytest

from handlers.names import JobType
from queue_service import clock
from queue_service.batch import Finished, State
from queue_service.reading import Reader
from queue_service.store.base import ResultStore, Wanted
from queue_service.store.batches import MongoBatches
from queue_service.store.mongo import Mongo
from queue_service.store.results import MongoResults
from runners.base import Bad, StopReason
from tests.store.support import (
    FAR_AWAY,
    LONG_AGO,
    archived,
    claimed,
    ended,
    held,
    ids_of,
    new_batch,
    put_into,
    verdict_on,
)
from tests.waiting import eventually

CROP = JobType("acme", "crop")
START = clock.now() - timedelta(hours=1)


def at(minute: int) -> datetime:
    return START + timedelta(minutes=minute)


async def posts_of(results: MongoResults, **asked: Any) -> list[str]:
    """The posts of a stream of done batches, in its order."""
    question = {"type_": None, "codes": (), "since": None} | asked
    return [done.spans[0].post async for done in results.results("acme", **question)]


def plain(value: Any) -> Any:
    """An answer as a tenant gets it."""
    return orjson.loads(orjson.dumps(value))


# One job.


@pytest.mark.checklist("M86", "M87", "C16")
async def test_a_job_is_found_through_splits_and_retries_with_all_its_attempts(
    mongo: Mongo, batches: MongoBatches, results: MongoResults
) -> None:
    first = await held(batches, new_batch("p", "q", lines=4))
    await batches.settle(
        [verdict_on(first, Bad(1, 100), Bad(4, 500), done=5, stop=StopReason.OUTPUT)]
    )
    await batches.settle([verdict_on(await claimed(batches), Bad(2, 404))])  # q-1 to q-3
    await put_into(mongo, "p-1.2", dt=LONG_AGO)
    await batches.settle([verdict_on(await claimed(batches), Bad(0, 503))])  # p-1 and q-0
    await put_into(mongo, "p-1.3", dt=LONG_AGO)
    await batches.settle([verdict_on(await claimed(batches), out=b'"at last"\n')])

    async def found(post: str, line: int) -> tuple[list[int], bytes, list[str]]:
        attempts = await results.job("acme", post, line)
        (payload,) = {payload for _, payload in attempts}
        answer = plain(await Reader(results).job("acme", post, line))
        assert answer["result"] == answer["attempts"][-1]
        codes = [f"{one['code']} {one['exitcode']}" for one in answer["attempts"]]
        return [seen.attempt for seen, _ in attempts], payload, codes

    table = {
        ("p", 0): ([1], b"p-0", ["ok 200"]),
        ("p", 1): ([3, 2, 1], b"p-1", ["retry 100", "error 503", "ok 200"]),
        ("p", 3): ([1], b"p-3", ["ok 200"]),
        ("q", 0): ([2, 1], b"q-0", ["error 500", "ok 200"]),
        ("q", 1): ([1], b"q-1", ["ok 200"]),
        ("q", 3): ([1], b"q-3", ["failed 404"]),
    }
    assert {job: await found(*job) for job in table} == table
    assert plain(await Reader(results).result("acme", "p", 1))["value"] == "at last"
    assert await results.job("acme", "p", 4) == []
    in_order = [record.id async for record in Reader(results).of_post("acme", "p")]
    assert in_order == ["p-0", "p-1", "p-2", "p-3"]


async def test_a_job_is_shown_where_it_stands(
    mongo: Mongo, batches: MongoBatches, results: MongoResults
) -> None:
    rows = [
        ("deferred", "", FAR_AWAY, State.DEFERRED),
        ("ready", "", LONG_AGO, State.READY),
        ("running", "s9.1", FAR_AWAY, State.RUNNING),
        ("abandoned", "s9.1", LONG_AGO, State.ABANDONED),
        ("parked", "__paused", FAR_AWAY, State.PARKED),
    ]
    await batches.add([new_batch(post, priority=7) for post, *_ in rows])
    for post, lock, dt, _ in rows:
        await put_into(mongo, f"{post}-0.1", lock=lock, dt=dt)
    for post, _, dt, state in rows:
        ((seen, payload),) = await results.job("acme", post, 2)
        assert (seen.state, seen.dt, seen.finished) == (state, dt, None)
        assert (seen.priority, ids_of(seen.spans)[2], payload) == (
            7,
            f"{post}-2",
            b"%s-2" % post.encode(),
        )


# A post.


async def test_a_posts_outline_names_its_ended_lines_without_reading_them(
    batches: MongoBatches, results: MongoResults
) -> None:
    first = await held(batches, new_batch("p", "q", lines=4))
    assert await results.outline("acme", "p") == []
    assert await results.known("acme", "q")
    await batches.settle([verdict_on(first, Bad(1, 404), done=3, stop=StopReason.OUTPUT)])
    (done,) = await results.outline("acme", "p")
    assert ids_of(done.spans) == ["p-0", "p-1", "p-2"]
    assert (done.ok, [line.exitcode for line in done.bad]) == (2, [404])
    assert (done.out, done.data, done.log) == (b"", b"", b"")
    assert await results.outline("acme", "q") == []
    assert not await results.known("acme", "r")


async def test_a_finished_batch_has_its_result_block(
    batches: MongoBatches, results: MongoResults
) -> None:
    waiting = new_batch("w", jobtype=CROP)
    await batches.add([waiting])
    end = (await ended(batches, new_batch("p"), Bad(1, 404))).finished
    done = await results.finished("acme", "p-0.1")
    assert isinstance(end, Finished)
    assert isinstance(done, Finished)
    assert (done.out, done.bad, done.ok, done.spans) == (end.out, end.bad, end.ok, end.spans)
    assert await results.finished("acme", waiting.id) is None
    assert await results.finished("acme", "nobody-0.1") is None


# All of a tenant's.


@pytest.mark.checklist("M87")
async def test_results_come_by_type_and_code_in_the_order_in_which_they_ended(
    batches: MongoBatches, results: MongoResults
) -> None:
    await batches.settle(
        [
            archived("c", done=at(1)),
            archived("b", Bad(0, 404), done=at(1)),
            archived("a", *(Bad(n, 500) for n in range(3)), done=at(5)),
            archived("d", done=at(0), jobtype=CROP),
        ]
    )
    await ended(batches, new_batch("e"), Bad(1, 100))
    await batches.add([new_batch("w")])
    assert await posts_of(results) == ["d", "b", "c", "a", "e"]
    assert await posts_of(results, type_="crop") == ["d"]
    assert await posts_of(results, type_="nothing") == []
    assert await posts_of(results, codes=["failed"]) == ["b"]
    assert await posts_of(results, codes=["failed", "error"]) == ["b", "a"]
    assert await posts_of(results, codes=["ok"], type_="resize") == ["b", "c", "e"]
    assert await posts_of(results, codes=["retry"]) == []  # it was no end: it is run again
    since = (at(1), "c-0.1")
    assert await posts_of(results, since=since) == ["c", "a", "e"]


async def test_a_stream_goes_on_behind_any_of_its_cursors(
    batches: MongoBatches, results: MongoResults
) -> None:
    """Over more batches than the driver fetches at once, several of them of one millisecond."""
    group = [archived(f"p{n:02}", Bad(n % 3, 404), done=at(n // 10)) for n in range(45)]
    assert all(await batches.settle(group))
    reader = Reader(results)

    async def read(cursor: str | None, *codes: str) -> list[tuple[str, str]]:
        stream = reader.of_type("acme", type_=None, codes=codes, cursor=cursor)
        return [(behind, record.id) async for behind, record in stream]

    whole = await read(None)
    assert [id_ for _, id_ in whole] == [f"p{n:02}-{line}" for n in range(45) for line in range(3)]
    for position in (0, 1, 2, 59, 134):
        rest = await read(whole[position][0])
        assert [id_ for _, id_ in rest] == [id_ for _, id_ in whole[position + 1 :]]
    failed = await read(None, "failed")
    assert [id_ for _, id_ in failed] == [f"p{n:02}-{n % 3}" for n in range(45)]


async def test_batches_are_listed_newest_id_first_by_type_and_state(
    batches: MongoBatches, results: MongoResults
) -> None:
    await batches.settle([archived("a"), archived("b", jobtype=CROP)])
    await held(batches, new_batch("c"))
    await batches.add([new_batch("d", jobtype=CROP), new_batch("e", dt=FAR_AWAY)])

    async def listed(**asked: Any) -> str:
        until, limit = asked.pop("until", None), asked.pop("limit", 10)
        found = await results.batches("acme", Wanted(**asked), until, limit)
        return "".join(seen.id[0] for seen in found)

    async def claim_is_seen() -> bool:
        return await listed(state=State.RUNNING) == "c"

    await eventually(claim_is_seen, within_s=5.0)
    assert await listed() == "edcba"
    assert await listed(type="crop") == "db"
    assert await listed(state=State.DONE) == "ba"
    assert await listed(state=State.READY) == "d"
    assert await listed(state=State.DEFERRED) == "e"
    assert await listed(state=State.READY, type="resize") == ""
    assert (await listed(limit=2), await listed(until="c-0.1", limit=2)) == ("ed", "cb")
    (done,) = await results.batches("acme", Wanted(type="crop", state=State.DONE), None, 9)
    assert done.finished is not None
    assert (done.finished.out, done.finished.data, done.finished.ok) == (b"", b"", 3)


# Another tenant.

Question = Callable[[MongoResults, str], Awaitable[Any]]


async def _streamed(results: MongoResults, tenant: str) -> list[Finished]:
    return [one async for one in results.results(tenant, type_=None, codes=(), since=None)]


QUESTIONS: dict[str, Question] = {
    "job": lambda results, tenant: results.job(tenant, "p", 0),
    "outline": lambda results, tenant: results.outline(tenant, "p"),
    "finished": lambda results, tenant: results.finished(tenant, "p-0.1"),
    "known": lambda results, tenant: results.known(tenant, "p"),
    "results": _streamed,
    "batches": lambda results, tenant: results.batches(tenant, Wanted(), None, 9),
    "scoreboard": lambda results, tenant: results.scoreboard(tenant),
}


@pytest.mark.checklist("M3", "C32")
@pytest.mark.parametrize("question", QUESTIONS)
async def test_another_tenant_sees_nothing(
    batches: MongoBatches, results: MongoResults, question: str
) -> None:
    await ended(batches, new_batch("p"))
    await batches.fold(100)
    await ended(batches, new_batch("q"))
    for stranger in ("beta", "acm", "acme2", "ACME", ""):
        assert not await QUESTIONS[question](results, stranger)
    assert await QUESTIONS[question](results, "acme")


def test_every_question_is_asked_by_another_tenant() -> None:
    assert set(QUESTIONS) == {name for name in vars(ResultStore) if not name.startswith("_")}
