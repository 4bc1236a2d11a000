"""The log: entering, running and completing each leave a record, from which all counts follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from .processes import process

CODES = ("ok", "failed", "retry", "error")


COUNTS = (*CODES, "waiting", "running")


def rebuilt(log: Path, jobtype: str) -> dict[str, int]:
    """A line of the scoreboard, out of nothing but log lines."""
    entered, begun, completed = (
        [event for event in events(log, name) if event["jobtype"] == jobtype]
        for name in ("batch.entered", "batch.running", "batch.completed")
    )
    # A batch of which nothing has ended was handed back whole. Of one that was cut, the rest
    # enters again.
    back = sum(event["jobs"] for event in completed if not event["ended"])
    return {code: sum(event.get(code, 0) for event in completed) for code in CODES} | {
        "waiting": jobs(entered) - jobs(begun) + back,
        "running": jobs(begun) - jobs(completed),
    }


def jobs(found: list[dict[str, Any]]) -> int:
    return sum(event["jobs"] for event in found)


def events(log: Path, name: str) -> list[dict[str, Any]]:
    found = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    return [event for event in found if event["event"] == name]


@pytest.mark.checklist("M20", "M46", "M81")
async def test_the_scoreboard_can_be_rebuilt_from_the_log_alone(
    mongod: str, database: str, tmp_path: Path
) -> None:
    async with process(
        tmp_path / "data", mongo=mongod, database=database, budget_s=0.2, log_format="json"
    ) as served:
        client = await (await served.start()).tenant()
        for name in ("fast", "slow", "mixed"):
            await client.upload(name)
        kinds = [{"do": "ok"}, {"do": "fail"}, {"do": "retry"}, {"do": "raise", "until": 2}]
        posted: dict[str, list[Any]] = {
            "fast": [{"do": "ok", "n": n} for n in range(2500)],
            "slow": [{"do": "sleep", "s": 0.02} for _ in range(30)],
            "mixed": [*(kinds * 10), {"do": "exit"}],
            "deferred": [1, 2, 3],
        }
        for type_, payloads in posted.items():
            more = {"delay": 60} if type_ == "deferred" else {"retries": 2}
            ids = await client.submit(type_, payloads, **more)
            if type_ != "deferred":
                await client.ended(ids)
        board = await client.board()
        assert await served.stop() == 0
    # When a job is due is not in the log, only that it has not begun.
    for row in board.values():
        row["waiting"] += row.pop("deferred")
    counts = {type_: rebuilt(served.log, f"{client.tenant}/{type_}") for type_ in posted}
    assert counts == {type_: {name: row[name] for name in COUNTS} for type_, row in board.items()}
    assert counts["fast"]["ok"] == 2500
    assert counts["deferred"]["waiting"] == 3


@pytest.mark.checklist("M20")
async def test_each_step_of_a_batch_is_one_line_that_names_it(
    mongod: str, database: str, tmp_path: Path
) -> None:
    async with process(
        tmp_path / "data", mongo=mongod, database=database, log_format="json"
    ) as served:
        client = await (await served.start()).tenant()
        await client.upload("work")
        [id_] = await client.submit("work", [{"do": "raise", "until": 2}])
        await client.ended([id_])
        assert await served.stop() == 0
    for attempt in (1, 2):
        steps = [
            (event["jobtype"], event["jobs"], event["attempt"])
            for name in ("batch.entered", "batch.running", "batch.completed")
            for event in events(served.log, name)
            if event["batch"] == f"{id_}.{attempt}"
        ]
        assert steps == [(f"{client.tenant}/work", 1, attempt)] * 3
    for line in served.log.read_bytes().splitlines():
        assert orjson.loads(line).keys() >= {"event", "level", "timestamp"}
