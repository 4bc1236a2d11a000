"""The four ways a job can stop, what follows from each, and what the scoreboard says of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from .support import Client, moment, serving, settings_of

CODES = ("ok", "failed", "retry", "error")
EXITCODES = {"ok": 200, "failed": 400, "retry": 100, "error": 500}
DOINGS = {"ok": "ok", "failed": "fail", "retry": "retry", "error": "raise"}


def counts(row: dict[str, Any]) -> dict[str, int]:
    return {code: row[code] for code in CODES}


@pytest.mark.checklist("M39", "M40", "M41", "M44", "M46", "M81", "M86", "M87")
@pytest.mark.parametrize("code", CODES)
async def test_each_code_ends_as_promised_and_is_counted_apart(work: Client, code: str) -> None:
    [record] = await work.run("work", [{"do": DOINGS[code]}], retries=2)
    assert (record["code"], record["exitcode"]) == (code, EXITCODES[code])
    attempts = 3 if code in ("retry", "error") else 1
    assert record["attempt"] == attempts
    row = await work.row("work")
    assert counts(row) == dict.fromkeys(CODES, 0) | {code: attempts}
    assert (row["waiting"], row["deferred"], row["running"]) == (0, 0, 0)
    by_id = await work.get(f"results/{record['id']}")
    assert by_id.json == record


@pytest.mark.checklist("M42", "M43", "M46")
@pytest.mark.parametrize("code", ["retry", "error"])
async def test_what_may_pass_is_run_again_until_it_does(work: Client, code: str) -> None:
    [id_] = await work.submit("work", [{"do": DOINGS[code], "until": 4, "n": 1}])
    [record] = await work.ended([id_])
    assert (record["code"], record["attempt"]) == ("ok", 4)
    assert record["value"] == {"n": 1, "id": id_, "attempt": 4}
    seen = await work.job(id_)
    assert [a["code"] for a in seen["attempts"]] == [code] * 3 + ["ok"]
    assert [a["attempt"] for a in seen["attempts"]] == [1, 2, 3, 4]
    assert counts(await work.row("work")) == dict.fromkeys(CODES, 0) | {code: 3, "ok": 1}


@pytest.mark.checklist("M44", "M87")
@pytest.mark.parametrize("code", ["retry", "error"])
async def test_retries_stop_and_the_job_ends_where_it_can_be_found(work: Client, code: str) -> None:
    [id_] = await work.submit("work", [{"do": DOINGS[code]}], retries=3)
    [record] = await work.ended([id_])
    seen = await work.job(id_)
    assert (seen["state"], seen["attempt"], seen["dt"]) == ("done", 4, None)
    assert seen["result"] == record == seen["attempts"][-1]
    assert [a["attempt"] for a in seen["attempts"]] == [1, 2, 3, 4]
    assert [r["id"] for r in await work.results(code=code)] == [id_]
    for other in set(CODES) - {code}:
        assert await work.results(code=other) == []
    # It has ended for good: whatever else runs, nothing of it comes back.
    await work.run("work", [{"do": "ok"}], delay=0.6)
    assert (await work.row("work"))[code] == 4


@pytest.mark.checklist("M42")
async def test_a_handler_can_say_how_long_to_wait(work: Client) -> None:
    [id_] = await work.submit("work", [{"do": "retry", "until": 2, "delay": 0.5}])
    [record] = await work.ended([id_])
    first, second = (await work.job(id_))["attempts"]
    assert (first["value"], record["code"]) == ({"attempt": 1}, "ok")
    assert moment(second["done_dt"]) - moment(first["done_dt"]) >= timedelta(seconds=0.5)


@pytest.mark.checklist("M44")
async def test_retries_stop_when_the_window_ends(
    mongod: str, database: str, tmp_path: Path
) -> None:
    async with serving(settings_of(tmp_path, mongod, database, retry_window_s=1.5)) as hearth:
        acme = await hearth.tenant()
        await acme.upload("work")
        [record] = await acme.run("work", [{"do": "raise"}], retries=1000, retry_delay=0.5)
        assert record["code"] == "error"
        assert 2 <= record["attempt"] <= 4
        assert (await acme.row("work"))["error"] == record["attempt"]


async def test_a_job_is_told_by_its_answer_what_went_wrong(work: Client) -> None:
    jobs = [{"do": "fail", "n": 5}, {"do": "raise"}, {"do": "retry"}]
    failed, error, retry = await work.run("work", jobs, retries=0)
    assert failed["value"] == {"why": 5}
    assert error["value"]["error"] == "RuntimeError: attempt 1"
    assert "body:" in error["value"]["trace"]
    assert retry["value"] == {"attempt": 1}


@pytest.mark.checklist("M39", "M40", "M41", "M42", "M43", "M46", "M81", "M86")
async def test_one_batch_may_hold_all_kinds_of_ends(work: Client) -> None:
    kinds = ["ok", "fail", "retry", "raise"]
    jobs = [{"do": kinds[n % 4], "n": n} for n in range(200)]
    results = await work.run("work", jobs, retries=1)
    assert [r["code"] for r in results] == list(CODES) * 50
    assert [r["attempt"] for r in results] == [1, 1, 2, 2] * 50
    assert counts(await work.row("work")) == {"ok": 50, "failed": 50, "retry": 100, "error": 100}


SLOW = """
import os, time
began = time.time()
time.sleep(0.1)
return {"pid": os.getpid(), "began": began, "ended": time.time()}
"""
LOSSES = {
    "hangs": ({"do": "sleep", "s": 60}, 7, 504, "no job ended for 0.3 s"),
    "is killed": ({"do": "kill"}, 7, 502, "killed by SIGKILL"),
    "exits first": ({"do": "exit"}, 0, 502, "exited with code 7"),
    "exits last": ({"do": "exit"}, 19, 502, "exited with code 7"),
}


@pytest.mark.checklist("M43", "M44")
@pytest.mark.parametrize(("job", "at", "exitcode", "why"), LOSSES.values(), ids=LOSSES.keys())
async def test_a_job_that_loses_its_process_ends_as_error_and_its_neighbours_do_not(
    work: Client, job: Any, at: int, exitcode: int, why: str
) -> None:
    jobs = [{"do": "ok", "n": n} for n in range(20)]
    jobs[at] = job
    results = await work.run("work", jobs, timeout=0.3, retries=0)
    lost = results.pop(at)
    assert (lost["code"], lost["exitcode"], lost["attempt"]) == ("error", exitcode, 1)
    assert why in lost["value"]["error"]
    assert [r["code"] for r in results] == ["ok"] * 19
    assert [r["value"]["n"] for r in results] == [n for n in range(20) if n != at]
    assert [r["attempt"] for r in results] == [1] * 19
    assert counts(await work.row("work")) == {"ok": 19, "failed": 0, "retry": 0, "error": 1}


@pytest.mark.checklist("M43", "M44")
async def test_a_job_that_keeps_killing_its_process_is_given_up_in_the_end(work: Client) -> None:
    jobs = [{"do": "ok", "n": 0}, {"do": "exit"}, {"do": "ok", "n": 2}]
    results = await work.run("work", jobs, retries=2)
    assert [(r["code"], r["attempt"]) for r in results] == [("ok", 1), ("error", 3), ("ok", 1)]
    seen = await work.job(results[1]["id"])
    assert [a["exitcode"] for a in seen["attempts"]] == [502, 502, 508]


async def test_a_result_that_is_no_json_is_an_error_of_its_job_alone(acme: Client) -> None:
    await acme.upload("odd", "return {1} if payload == 1 else payload")
    results = await acme.run("odd", [0, 1, 2], retries=0)
    assert [r["code"] for r in results] == ["ok", "error", "ok"]
    assert "set" in results[1]["value"]["error"]


@pytest.fixture
async def hurried(mongod: str, database: str, tmp_path: Path) -> AsyncIterator[Client]:
    """A tenant of a daemon that stops a batch after a fifth of a second to share out the rest."""
    async with serving(settings_of(tmp_path, mongod, database, budget_s=0.2, contexts=2)) as hearth:
        acme = await hearth.tenant()
        await acme.upload("work")
        yield acme


@pytest.mark.checklist("M46", "M81")
async def test_splitting_a_slow_batch_keeps_ids_and_order(hurried: Client) -> None:
    jobs: list[dict[str, Any]] = [{"do": "sleep", "s": 0.02, "n": n} for n in range(80)]
    jobs[40] = {"do": "fail", "n": 40}
    jobs[41] = {"do": "retry", "until": 2, "n": 41}
    answer = await hurried.submit("work", jobs)
    results = await hurried.ended(answer)
    assert [r["id"] for r in results] == answer
    assert [r["code"] for r in results if r["code"] != "ok"] == ["failed"]
    assert [r["attempt"] for r in results] == [1] * 41 + [2] + [1] * 38
    others = [r for n, r in enumerate(results) if n != 40]
    assert [r["value"]["id"] for r in others] == [r["id"] for r in others]
    assert [r["value"]["n"] for r in others] == [n for n in range(80) if n != 40]
    row = await hurried.row("work")
    assert counts(row) == {"ok": 79, "failed": 1, "retry": 1, "error": 0}
    # It was split: no two claims can have ended at the same moment with 1.6 seconds of work.
    assert len({r["done_dt"] for r in results}) > 3


async def test_the_parts_of_a_split_batch_run_side_by_side(hurried: Client) -> None:
    await hurried.upload("slow", SLOW)
    runs = [record["value"] for record in await hurried.run("slow", range(14))]
    overlaps = [
        (one, other)
        for one, other in combinations(runs, 2)
        if one["began"] < other["ended"] and other["began"] < one["ended"]
    ]
    assert overlaps
    assert all(one["pid"] != other["pid"] for one, other in overlaps)
