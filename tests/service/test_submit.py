"""Submitting: every line becomes a job with an id, in order, readable at once, never run too early.

That payloads are not touched on the way is shown in `test_payloads`.
"""

from __future__ import annotations

import asyncio
import gzip
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from queue_service import daemon
from queue_service.handler_cache import HandlerCache
from tests.waiting import eventually

from .support import PROBLEM, Client, lines_of, moment, serving, settings_of


@pytest.mark.checklist("M47")
@pytest.mark.parametrize("path", ["/{tenant}/job/work/add", "/v1/{tenant}/jobs/work"])
async def test_every_line_of_the_body_becomes_a_job_and_the_ids_are_in_order(
    work: Client, path: str
) -> None:
    body = b'{"do":"ok","n":0}\nsecond\n\nlast'
    answer = await work.ask("POST", path.format(tenant=work.tenant), body)
    assert answer.status == 202
    assert answer.type == "application/json"
    batch = answer.json["batch"]
    ids = [f"{batch}-{line}" for line in range(4)]
    assert answer.json == {"batch": batch, "count": 4, "ids": ids}
    first, *others = await work.ended(ids)
    assert first["value"] == {"n": 0, "id": ids[0], "attempt": 1}
    assert [record["value"] for record in others] == [list(b"second"), [], list(b"last")]


async def test_waiting_answers_200_with_the_results_in_the_order_of_the_lines(
    work: Client,
) -> None:
    jobs = [{"do": "retry", "until": 2, "n": n} if n % 3 == 0 else n for n in range(30)]
    answer = await work.post("work", lines_of(jobs), wait=20)
    assert answer.status == 200
    found = answer.json
    assert found.keys() == {"batch", "count", "ids", "results"}
    assert [record["id"] for record in found["results"]] == found["ids"]
    assert [record["attempt"] for record in found["results"]] == [2, 1, 1] * 10
    assert found["results"][0].keys() == {
        *("id", "type", "code", "exitcode", "value", "attempt", "done_dt")
    }


async def test_waiting_answers_202_when_the_time_runs_out_and_the_job_goes_on(work: Client) -> None:
    answer = await work.post("work", lines_of([1, {"do": "sleep", "s": 1}]), wait=0.1)
    assert answer.status == 202
    assert answer.json.keys() == {"batch", "count", "ids"}
    ended = await work.ended(answer.json["ids"])
    assert [record["code"] for record in ended] == ["ok", "ok"]


async def test_what_was_accepted_can_be_read_at_once(acme: Client) -> None:
    for n in range(20):
        ids = await acme.submit("unhandled", range(n, n + 3))
        seen = await acme.job(ids[-1])
        assert (seen["state"], seen["payload"]) == ("ready", n + 2)
    ids = await acme.submit("unhandled", [0])
    assert (await acme.get("results", batch=ids[0].partition("-")[0])).status == 200
    ids = await acme.submit("unhandled", [0])
    assert (await acme.row("unhandled"))["waiting"] == 62
    ids = await acme.submit("unhandled", [0])
    listed = (await acme.get("jobs", type="unhandled", limit=1000)).json["jobs"]
    assert ids[0] in {entry["id"] for entry in listed}


async def test_posts_that_arrive_together_keep_their_own_lines_and_options(work: Client) -> None:
    async def post(n: int) -> None:
        payloads = [f"{n}/{line}" for line in range(n % 4 + 1)]
        priority = n % 2 + 50
        answer = await work.post("work", "\n".join(payloads).encode(), priority=priority, wait=20)
        values = [bytes(record["value"]).decode() for record in answer.json["results"]]
        assert values == payloads
        assert (await work.job(answer.json["ids"][-1]))["priority"] == priority

    await asyncio.gather(*(post(n) for n in range(150)))
    assert (await work.row("work"))["ok"] == sum(n % 4 + 1 for n in range(150))


async def test_jobs_of_ever_new_types_do_not_disturb_the_daemon(
    mongod: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Handlers are looked up all the time, not once a second, and new types come in meanwhile.
    monkeypatch.setattr(daemon, "HandlerCache", partial(HandlerCache, ttl_s=0.01))
    async with serving(settings_of(tmp_path, mongod, database)) as hearth:
        acme = await hearth.tenant()
        await acme.upload("work")
        for n in range(200):
            await acme.submit(f"type{n}", [1])
        board = await acme.board()
        assert [row["waiting"] for row in board.values()] == [1] * 200
        assert [r["code"] for r in await acme.run("work", [1])] == ["ok"]


async def test_a_post_larger_than_a_batch_keeps_its_order(work: Client) -> None:
    ids = await work.submit("work", range(2500))
    assert ids == [f"{ids[0].partition('-')[0]}-{line}" for line in range(2500)]
    ended = await work.ended(ids)
    assert [bytes(record["value"]) for record in ended] == [b"%d" % n for n in range(2500)]


@pytest.mark.checklist("M28")
async def test_any_daemon_takes_any_tenants_jobs_and_answers_for_those_of_the_other(
    mongod: str, database: str, tmp_path: Path
) -> None:
    one, two = (settings_of(tmp_path / name, mongod, database) for name in ("one", "two"))
    async with serving(one) as a, serving(two) as b:
        assert a.sysid != b.sysid
        for here, there in ((a, b), (b, a)):
            acme = await here.tenant()
            ids = await acme.submit("unhandled", range(3), ack="store")
            assert (await there.at(acme).job(ids[2]))["state"] == "ready"
            await there.at(acme).upload("work")
            ids = await acme.submit("work", range(100))
            assert [r["value"] for r in await there.at(acme).ended(ids)] == [
                list(b"%d" % n) for n in range(100)
            ]
            assert await acme.board() == await there.at(acme).board()


async def test_waiting_at_one_daemon_hears_of_what_another_has_run(
    mongod: str, database: str, tmp_path: Path
) -> None:
    one = settings_of(tmp_path / "one", mongod, database, contexts=1)
    async with serving(one) as a:
        acme = await a.tenant()
        await acme.upload("work")
        slow = await acme.submit("work", [{"do": "sleep", "s": 1.5}])
        await eventually(lambda: running(acme, slow[0]))
        # The only context here is taken: what is posted now is left to the other daemon.
        async with serving(settings_of(tmp_path / "two", mongod, database, contexts=1)):
            found = await acme.run("work", [{"do": "ok", "n": 7}])
            assert found[0]["value"]["n"] == 7
            assert (await acme.job(slow[0]))["state"] == "running"


async def running(client: Client, id_: str) -> bool:
    return bool((await client.job(id_))["state"] == "running")


@pytest.mark.checklist("M7", "M8")
@pytest.mark.parametrize("how", ["delay", "at", "at in another zone"])
async def test_a_deferred_job_is_not_run_before_its_time(work: Client, how: str) -> None:
    asked = datetime.now(UTC)
    at = asked + timedelta(seconds=0.8)
    zone = timezone(timedelta(hours=5, minutes=30)) if "zone" in how else UTC
    query = {"delay": "0.8"} if how == "delay" else {"at": at.astimezone(zone).isoformat()}
    [id_] = await work.submit("work", ["later"], **query)
    seen = await work.job(id_)
    assert (seen["state"], seen["result"]) == ("deferred", None)
    assert abs(moment(seen["dt"]) - at) < timedelta(seconds=0.5)
    row = await work.row("work")
    assert (row["deferred"], row["waiting"], row["running"]) == (1, 0, 0)
    assert (await work.get(f"results/{id_}")).status == 404
    [ended] = await work.ended([id_])
    assert moment(ended["done_dt"]) >= at - timedelta(milliseconds=1)


async def test_a_time_that_has_passed_means_at_once(work: Client) -> None:
    [record] = await work.run("work", [{"do": "ok", "n": 1}], at="1999-12-31T23:59:59")
    assert record["value"]["n"] == 1


async def test_a_higher_priority_goes_first(mongod: str, database: str, tmp_path: Path) -> None:
    async with serving(settings_of(tmp_path, mongod, database, contexts=1)) as hearth:
        acme = await hearth.tenant()
        await acme.upload("work")
        [first] = await acme.submit("work", [{"do": "sleep", "s": 1}])
        await eventually(lambda: running(acme, first))
        low = await acme.submit("work", [{"do": "sleep", "s": 0.1}], priority=1, ack="store")
        usual = await acme.submit("work", [{"do": "sleep", "s": 0.1}], ack="store")
        high = await acme.submit("work", [{"do": "sleep", "s": 0.1}], priority=100, ack="store")
        assert (await acme.job(first))["state"] == "running"
        ended = await acme.ended([*high, *usual, *low])
        times = [record["done_dt"] for record in ended]
        assert times == sorted(times)
        assert len(set(times)) == 3


async def test_the_timeout_that_was_asked_for_ends_a_job(work: Client) -> None:
    [short] = await work.run("work", [{"do": "sleep", "s": 5}], timeout=0.2, retries=0)
    assert (short["code"], short["exitcode"]) == ("error", 504)
    [long] = await work.run("work", [{"do": "sleep", "s": 0.5, "n": 1}], timeout=5, retries=0)
    assert (long["code"], long["value"]["n"]) == ("ok", 1)


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_as_many_retries_as_were_asked_for(work: Client, retries: int) -> None:
    [record] = await work.run("work", [{"do": "retry"}], retries=retries)
    assert (record["code"], record["attempt"]) == ("retry", retries + 1)


async def test_the_retry_delay_that_was_asked_for_lies_between_attempts(work: Client) -> None:
    [id_] = await work.submit("work", [{"do": "retry", "until": 3}], retry_delay=0.4)
    await work.ended([id_])
    times = [moment(attempt["done_dt"]) for attempt in (await work.job(id_))["attempts"]]
    assert len(times) == 3
    assert all(b - a >= timedelta(seconds=0.4) for a, b in pairwise(times))


async def test_an_acknowledgement_by_the_store_means_that_the_jobs_are_there(
    mongod: str, database: str, tmp_path: Path
) -> None:
    async with (
        serving(settings_of(tmp_path, mongod, database)) as hearth,
        AsyncMongoClient[dict[str, Any]](mongod) as client,
    ):
        acme = await hearth.tenant()
        for n in range(1, 6):
            answer = await acme.post("unhandled", b"1\n2\n", ack="store")
            assert (answer.status, answer.json["count"]) == (202, 2)
            found = await client[database].batches.find({"tenant": acme.tenant}).to_list()
            assert [batch["n"] for batch in found] == [2] * n


@pytest.mark.parametrize("encoding", ["gzip", "identity", "no-such"])
async def test_an_encoded_body_is_refused_instead_of_being_stored_as_it_is(
    work: Client, encoding: str
) -> None:
    body = gzip.compress(b"1\n2\n")
    path = f"/v1/{work.tenant}/jobs/work"
    answer = await work.ask("POST", path, body, {"Content-Encoding": encoding})
    assert (answer.status, answer.type) == (415, PROBLEM)
    assert answer.json["type"] == "urn:hearth:problem:unsupported-media"
    assert await work.board() == {}
