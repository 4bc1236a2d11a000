"""Reading: results by id, batch, type and code, in pages and as a stream; jobs; the scoreboard.

All tests read the same hundred jobs of several posts, of which some were retried.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest

from .support import NDJSON, Client, Hearth, moment, serving, settings_of

KINDS = ("ok", "fail", "retry", "raise", "later")
CODES = {"ok": "ok", "fail": "failed", "retry": "retry", "raise": "error", "later": "ok"}


@dataclass(frozen=True, slots=True)
class Read:
    """A tenant, and what it posted: the payload of each id, by type, post after post."""

    client: Client
    posts: dict[str, list[list[str]]]
    jobs: dict[str, dict[str, Any]]

    def ids(self, type_: str) -> list[str]:
        return [id_ for post in self.posts[type_] for id_ in post]

    def having(self, *codes: str) -> set[str]:
        return {id_ for id_, job in self.jobs.items() if CODES[job["kind"]] in codes}


@pytest.fixture(scope="module")
async def read(hearth: Hearth) -> Read:
    client = await hearth.tenant()
    posts: dict[str, list[list[str]]] = {"one": [], "two": []}
    jobs: dict[str, dict[str, Any]] = {}
    for type_ in posts:
        await client.upload(type_)
    n = 0
    for size in (1, 9, 25, 15):
        for type_ in posts:
            made = []
            for _ in range(size):
                kind = KINDS[n % len(KINDS)]
                do = {"do": "raise", "until": 2} if kind == "later" else {"do": kind}
                made.append({"n": n, "kind": kind} | do)
                n += 1
            ids = await client.submit(type_, made, retries=2)
            posts[type_].append(ids)
            jobs.update(zip(ids, made, strict=True))
    await client.ended(jobs)
    return Read(client, posts, jobs)


async def pages(client: Client, what: str, **query: Any) -> AsyncIterator[list[Any]]:
    """Page after page, until there is no next."""
    cursor: str | None = None
    while True:
        more = query | ({"cursor": cursor} if cursor else {})
        answer = await client.get(what, **more)
        assert answer.status == 200, answer.body
        assert answer.json.keys() == {what, "next"}
        yield answer.json[what]
        cursor = answer.json["next"]
        if cursor is None:
            return


async def joined(client: Client, what: str, **query: Any) -> list[Any]:
    return [entry async for page in pages(client, what, **query) for entry in page]


@pytest.mark.checklist("M86", "M87")
async def test_each_result_can_be_read_by_its_id(read: Read) -> None:
    for id_, job in read.jobs.items():
        answer = await read.client.get(f"results/{id_}")
        assert answer.status == 200
        result = answer.json
        assert (result["id"], result["code"]) == (id_, CODES[job["kind"]])
        assert result["type"] in read.posts
        assert result["attempt"] == {"ok": 1, "fail": 1, "later": 2}.get(job["kind"], 3)


@pytest.mark.parametrize("limit", [1, 7, 25, 1000])
async def test_the_pages_of_a_batch_join_to_its_results_in_order(read: Read, limit: int) -> None:
    for type_ in read.posts:
        for ids in read.posts[type_]:
            batch = ids[0].partition("-")[0]
            sizes = [len(p) async for p in pages(read.client, "results", batch=batch, limit=limit)]
            assert max(sizes) <= limit
            found = await joined(read.client, "results", batch=batch, limit=limit)
            assert [record["id"] for record in found] == ids


@pytest.mark.parametrize("codes", ["failed", "ok", "retry,error", "ok,failed,retry,error"])
@pytest.mark.parametrize("limit", [1, 6, 1000])
async def test_the_pages_by_type_and_code_join_without_gaps_or_repeats(
    read: Read, codes: str, limit: int
) -> None:
    wanted = read.having(*codes.split(","))
    for type_ in read.posts:
        found = await joined(read.client, "results", type=type_, code=codes, limit=limit)
        ids = [record["id"] for record in found]
        assert len(ids) == len(set(ids))
        assert set(ids) == wanted & set(read.ids(type_))
        whole = await read.client.results(type=type_, code=codes)
        assert found == whole


@pytest.mark.parametrize("limit", [3, 100])
async def test_the_pages_of_all_results_join_to_the_whole(read: Read, limit: int) -> None:
    found = await joined(read.client, "results", limit=limit)
    assert sorted(record["id"] for record in found) == sorted(read.jobs)
    ends = [record["done_dt"] for record in found]
    assert ends == sorted(ends)


async def test_results_of_a_batch_can_be_narrowed_to_a_code(read: Read) -> None:
    ids = read.posts["two"][2]
    batch = ids[0].partition("-")[0]
    failed = [id_ for id_ in ids if id_ in read.having("failed", "error")]
    for limit in (1, 100):
        found = await joined(read.client, "results", batch=batch, code="failed,error", limit=limit)
        assert [record["id"] for record in found] == failed


async def test_a_stream_gives_a_batch_in_order_and_nothing_else(read: Read) -> None:
    for ids in read.posts["one"]:
        batch = ids[0].partition("-")[0]
        answer = await read.client.get("results", {"Accept": NDJSON}, batch=batch)
        assert answer.type == NDJSON
        assert answer.body.endswith(b"\n")
        assert [record["id"] for record in answer.lines] == ids
        paged = await joined(read.client, "results", batch=batch, limit=4)
        assert answer.lines == paged


async def test_a_job_shows_where_it_stands_and_every_attempt(read: Read) -> None:
    for id_, job in read.jobs.items():
        seen = await read.client.job(id_)
        assert seen.keys() == {
            *("id", "type", "state", "attempt", "priority", "payload", "create_dt", "dt"),
            *("done_dt", "result", "log", "attempts"),
        }
        assert (seen["id"], seen["state"], seen["payload"]) == (id_, "done", job)
        attempts = [attempt["attempt"] for attempt in seen["attempts"]]
        assert attempts == list(range(1, seen["attempt"] + 1))
        assert seen["result"] == seen["attempts"][-1]
        assert moment(seen["create_dt"]) <= moment(seen["done_dt"])


@pytest.mark.parametrize("limit", [1, 13, 1000])
async def test_the_list_of_jobs_names_each_once_whatever_the_page(read: Read, limit: int) -> None:
    for type_ in read.posts:
        found = await joined(read.client, "jobs", type=type_, limit=limit)
        assert sorted(entry["id"] for entry in found) == sorted(read.ids(type_))
    found = await joined(read.client, "jobs", state="done", limit=limit)
    assert {entry["id"]: entry["code"] for entry in found} == {
        id_: CODES[job["kind"]] for id_, job in read.jobs.items()
    }
    assert len(found) == len(read.jobs)


async def test_the_list_of_jobs_can_be_narrowed_to_a_code(read: Read) -> None:
    found = await joined(read.client, "jobs", code="failed", limit=1000)
    assert {entry["id"] for entry in found} == read.having("failed")


async def test_jobs_are_listed_by_the_state_they_are_in(
    mongod: str, database: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = settings_of(tmp_path_factory.mktemp("states"), mongod, database)
    async with serving(settings) as hearth:
        client = await hearth.tenant()
        await client.upload("work")
        expected = {
            "done": [r["id"] for r in await client.run("work", [{"do": "ok"}] * 2)],
            "deferred": await client.submit("work", [{"do": "ok"}] * 3, delay=60),
            "ready": await client.submit("unhandled", range(4)),
            "running": await client.submit("work", [{"do": "sleep", "s": 1.5}]),
        }
        for state, ids in expected.items():
            found = await joined(client, "jobs", state=state)
            assert [entry["id"] for entry in found] == ids
            assert {entry["state"] for entry in found} == {state}
        found = await joined(client, "jobs", limit=2)
        assert sorted(e["id"] for e in found) == sorted(chain.from_iterable(expected.values()))
        row = await client.row("work")
        assert (row["waiting"], row["deferred"], row["running"], row["ok"]) == (0, 3, 1, 2)
        row = await client.row("unhandled")
        assert (row["waiting"], row["deferred"], row["running"], row["ok"]) == (4, 0, 0, 0)


@pytest.mark.checklist("M46", "M81")
async def test_the_scoreboard_counts_jobs_now_and_attempts_so_far(read: Read) -> None:
    board = await read.client.board()
    assert board.keys() == {"one", "two"}
    for type_, row in board.items():
        assert row.keys() == {
            *("waiting", "deferred", "running", "ok", "failed", "retry", "error"),
            *("jobs_per_s", "run_s", "wait_s"),
            *("run_s_total", "cpu_s_total", "load_s_total", "per_job"),
        }
        kinds = [read.jobs[id_]["kind"] for id_ in read.ids(type_)]
        assert {code: row[code] for code in ("ok", "failed", "retry", "error")} == {
            "ok": kinds.count("ok") + kinds.count("later"),
            "failed": kinds.count("fail"),
            "retry": 3 * kinds.count("retry"),
            "error": 3 * kinds.count("raise") + kinds.count("later"),
        }
        assert (row["waiting"], row["deferred"], row["running"]) == (0, 0, 0)
        assert row["jobs_per_s"] > 0
        for times in (row["run_s"], row["wait_s"]):
            assert times.keys() == {"p50", "p95", "p99"}
            assert 0 <= times["p50"] <= times["p95"] <= times["p99"] < 60


async def test_a_job_that_waits_for_its_next_attempt_has_no_result_yet(work: Client) -> None:
    job = {"do": "retry", "until": 2, "delay": 60}
    waits, ends = await work.submit("work", [job, {"do": "ok"}])
    await work.ended([ends])
    seen = await work.job(waits)
    assert (seen["state"], seen["attempt"], seen["result"]) == ("deferred", 2, None)
    assert [attempt["code"] for attempt in seen["attempts"]] == ["retry"]
    assert (await work.get(f"results/{waits}")).status == 404
    assert [record["id"] for record in await work.results()] == [ends]
    row = await work.row("work")
    assert (row["deferred"], row["retry"], row["ok"]) == (1, 1, 1)


async def test_what_a_handler_prints_is_shown_with_the_job_and_is_no_result(acme: Client) -> None:
    await acme.upload("chatty", "print('seen', payload)\nreturn payload")
    [record] = await acme.run("chatty", [7])
    assert record["value"] == 7
    assert (await acme.job(record["id"]))["log"] == "seen 7\n"
