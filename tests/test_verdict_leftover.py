"""Verdicts on a run that stopped early: what is shared out, who is to blame, what never ran."""

from __future__ import annotations

import json
from random import Random

import pytest

from queue_service.batch import BadLine, codes_of
from queue_service.verdict import NO_HANDLER, never_handled
from runners.base import Bad, Span, StopReason
from tests.verdicts import NOW, POLICY, batch_of, delay_of, jobs_of, outcome_of, settled

LOST = [StopReason.TIMEOUT, StopReason.DIED, StopReason.PROTOCOL]


@pytest.mark.parametrize(
    ("count", "done", "run_s", "sizes"),
    [
        pytest.param(100, 10, 1.0, [10] * 9, id="a second's work each"),
        pytest.param(100, 40, 2.0, [20, 20, 20], id="at the rate that was measured"),
        pytest.param(100, 30, 1.0, [30, 30, 10], id="the last part is smaller"),
        pytest.param(100, 60, 1.0, [40], id="less than a second is left"),
        pytest.param(4, 1, 3.0, [1, 1, 1], id="slow jobs go one by one"),
        pytest.param(1001, 1, 3.0, [16] * 62 + [8], id="but not into too many parts"),
        pytest.param(100, 10, 0.0, [90], id="nothing was measured"),
    ],
)
def test_work_over_the_budget_is_shared_out(
    count: int, done: int, run_s: float, sizes: list[int]
) -> None:
    batch = batch_of((Span(post="p", first=5, count=count),), attempt=2)
    end = settled(batch, outcome_of(done, stop=StopReason.BUDGET, run_s=run_s))
    assert end.finished is not None
    assert (end.narrowed, end.finished.count, end.finished.ok) == (True, done, done)
    assert [part.count for part in end.successors] == sizes
    together = b"".join((end.finished.data, *(part.data for part in end.successors)))
    assert together == batch.data
    assert {(part.dt, part.attempt, part.careful) for part in end.successors} == {(NOW, 2, False)}


def test_a_full_result_block_leaves_the_rest_to_one_batch() -> None:
    end = settled(batch_of(), outcome_of(4, stop=StopReason.OUTPUT, run_s=9.0))
    assert [jobs_of(part.data) for part in end.successors] == [[f"p-{n}" for n in range(4, 10)]]
    assert delay_of(end.successors[0]) == 0


@pytest.mark.parametrize("reason", LOST)
def test_without_a_job_to_blame_the_rest_is_watched_closely(reason: StopReason) -> None:
    end = settled(batch_of(attempt=2), outcome_of(4, stop=reason, run_s=4.0))
    assert end.finished is not None
    assert (end.finished.count, end.finished.bad) == (4, ())
    (rest,) = end.successors
    assert jobs_of(rest.data) == [f"p-{n}" for n in range(4, 10)]
    assert (rest.dt, rest.attempt, rest.careful) == (NOW, 2, True)


@pytest.mark.parametrize(
    ("reason", "exitcode"), [(LOST[0], 504), (LOST[1], 502), (LOST[2], 502)], ids=LOST
)
@pytest.mark.parametrize("at", [0, 4, 9])
def test_only_the_job_to_blame_gets_the_error(reason: StopReason, exitcode: int, at: int) -> None:
    batch = batch_of(attempt=2, retry_delay_s=30.0, careful=True)
    end = settled(batch, outcome_of(at, stop=reason, blamed=at))
    assert end.finished is not None
    assert (end.finished.ok, end.finished.count) == (at, at + 1)
    assert end.finished.bad == (BadLine(at, exitcode, True),)
    assert json.loads(end.finished.out.splitlines()[at]) == {"error": f"it was {reason}"}
    blamed, *rest = end.successors
    assert (jobs_of(blamed.data), blamed.attempt, delay_of(blamed)) == ([f"p-{at}"], 3, 30.0)
    assert [jobs_of(part.data) for part in rest] == (
        [[f"p-{n}" for n in range(at + 1, 10)]] if at < 9 else []
    )
    assert all((part.dt, part.attempt, part.careful) == (NOW, 2, False) for part in rest)
    assert end.narrowed is (at < 9)


@pytest.mark.checklist("M44")
def test_a_job_to_blame_runs_out_of_attempts_and_its_neighbours_do_not() -> None:
    batch = batch_of(attempt=4, retries=3)
    end = settled(batch, outcome_of(4, Bad(1, 400), stop=StopReason.DIED, blamed=4))
    assert end.finished is not None
    assert end.finished.bad == (BadLine(1, 400, False), BadLine(4, 502, False))
    (rest,) = end.successors
    assert (jobs_of(rest.data)[0], rest.attempt) == ("p-5", 4)


# No handler that could run.


@pytest.mark.parametrize(("attempt", "again"), [(1, True), (4, False)])
def test_a_handler_that_does_not_load_is_an_error_of_every_job(attempt: int, again: bool) -> None:
    batch = batch_of(attempt=attempt, retries=3)
    end = settled(batch, outcome_of(0, stop=StopReason.UNLOADABLE))
    assert end.finished is not None
    assert end.finished.bad == tuple(BadLine(n, 500, again) for n in range(10))
    assert {line["error"] for line in map(json.loads, end.finished.out.splitlines())} == {
        "it was unloadable"
    }
    assert [next_.data for next_ in end.successors] == [batch.data] * again


@pytest.mark.checklist("M44")
def test_a_job_that_never_had_a_handler_ends_recorded() -> None:
    batch = batch_of(window_left_s=-0.001)
    end = never_handled(batch, now=NOW, policy=POLICY, rng=Random(1))
    assert end.finished is not None
    assert end.successors == ()
    assert end.finished.bad == tuple(BadLine(n, NO_HANDLER, False) for n in range(10))
    assert codes_of(end.finished) == {"ok": 0, "error": 10}
    assert end.finished.out.count(b"\n") == 10
    assert end.finished.handler_version == 0
