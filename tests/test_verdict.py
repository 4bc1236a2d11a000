"""Verdicts: what has ended, what is run again and when, what goes back untouched.

What is left over of a batch is in `test_verdict_leftover.py`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest

from queue_service.batch import BadLine
from runners.base import Bad, Span, StopReason
from tests.verdicts import NOW, POLICY, VERSION, batch_of, delay_of, jobs_of, outcome_of, settled

# What is final, and what is not.


@pytest.mark.checklist("M40")
def test_ok_is_final() -> None:
    batch = batch_of()
    end = settled(batch, outcome_of(10))
    assert end.finished is not None
    assert (end.finished.ok, end.finished.bad, end.finished.count) == (10, (), 10)
    assert (end.successors, end.narrowed) == ((), False)
    assert end.finished.data is batch.data  # the normal path copies nothing


@pytest.mark.checklist("M39", "M40", "M41", "M42", "M43")
@pytest.mark.parametrize(
    ("exitcode", "again"),
    [
        (100, True),
        (199, True),
        (400, False),
        (404, False),
        (499, False),
        (500, True),
        (501, True),
        (502, True),
        (504, True),
        (599, True),
    ],
)
def test_failed_is_final_and_retry_and_error_are_not(exitcode: int, again: bool) -> None:
    end = settled(batch_of(retry_delay_s=30.0), outcome_of(10, Bad(3, exitcode)))
    assert end.finished is not None
    assert end.finished.ok == 9
    assert end.finished.bad == (BadLine(3, exitcode, again),)
    assert [jobs_of(next_.data) for next_ in end.successors] == ([["p-3"]] if again else [])
    assert [(next_.attempt, delay_of(next_)) for next_ in end.successors] == [(2, 30.0)] * again


@pytest.mark.checklist("M44")
@pytest.mark.parametrize("exitcode", [100, 500])
@pytest.mark.parametrize(
    ("attempt", "retries", "again"),
    [(1, 0, False), (1, 1, True), (2, 1, False), (3, 3, True), (4, 3, False), (9, 3, False)],
)
def test_attempts_come_to_an_end_that_is_recorded(
    attempt: int, retries: int, again: bool, exitcode: int
) -> None:
    end = settled(batch_of(attempt=attempt, retries=retries), outcome_of(10, Bad(0, exitcode)))
    assert end.finished is not None
    assert end.finished.bad == (BadLine(0, exitcode, again),)
    assert len(end.successors) == again


@pytest.mark.checklist("M44")
@pytest.mark.parametrize(
    ("left_s", "again"), [(-1.0, False), (0.0, False), (29.9, False), (30.0, True), (31.0, True)]
)
def test_a_retry_that_would_come_after_the_window_is_not_made(left_s: float, again: bool) -> None:
    batch = batch_of(retry_delay_s=30.0, window_left_s=left_s)
    end = settled(batch, outcome_of(10, Bad(2, 100), Bad(5, 500)))
    assert end.finished is not None
    assert end.finished.bad == (BadLine(2, 100, again), BadLine(5, 500, again))
    assert len(end.successors) == again


# When it is run again.


@pytest.mark.checklist("M42")
def test_a_handler_chooses_the_delay_of_its_own_job() -> None:
    bad = (Bad(1, 100, 5.0), Bad(2, 500), Bad(4, 100, 0.0), Bad(6, 100, 5.0), Bad(7, 100))
    end = settled(batch_of(retry_delay_s=30.0), outcome_of(10, *bad))
    assert {delay_of(next_): jobs_of(next_.data) for next_ in end.successors} == {
        0.0: ["p-4"],
        5.0: ["p-1", "p-6"],
        30.0: ["p-2", "p-7"],
    }


@pytest.mark.checklist("M42", "M44")
def test_a_delay_beyond_the_window_ends_that_job_alone() -> None:
    end = settled(
        batch_of(retry_delay_s=30.0, window_left_s=60.0),
        outcome_of(10, Bad(1, 100, 61.0), Bad(2, 100)),
    )
    assert end.finished is not None
    assert end.finished.bad == (BadLine(1, 100, False), BadLine(2, 100, True))
    assert [jobs_of(next_.data) for next_ in end.successors] == [["p-2"]]


@pytest.mark.checklist("M43")
@pytest.mark.parametrize(
    ("attempt", "ceiling_s"),
    [(1, 5.0), (2, 10.0), (3, 20.0), (8, 640.0), (9, 900.0), (5000, 900.0)],
)
def test_pauses_grow_and_are_spread_over_their_whole_length(attempt: int, ceiling_s: float) -> None:
    pauses = [POLICY.pause_s(attempt, Random(seed)) for seed in range(400)]
    assert all(0 <= pause <= ceiling_s for pause in pauses)
    assert min(pauses) < 0.05 * ceiling_s
    assert max(pauses) > 0.95 * ceiling_s
    assert sum(pauses) / len(pauses) == pytest.approx(ceiling_s / 2, rel=0.1)


@pytest.mark.checklist("M43")
def test_jobs_without_a_delay_of_their_own_share_one() -> None:
    bad = tuple(Bad(index, 500) for index in (0, 3, 4, 9))
    (one,) = settled(batch_of(attempt=2), outcome_of(10, *bad), seed=5).successors
    assert jobs_of(one.data) == ["p-0", "p-3", "p-4", "p-9"]
    assert one.count == 4
    assert delay_of(one) == pytest.approx(Random(5).uniform(0, 10.0), abs=1e-6)


def test_a_successor_is_the_same_work_one_attempt_on() -> None:
    batch = batch_of(attempt=2)
    (one,) = settled(batch, outcome_of(10, Bad(3, 500))).successors
    assert (one.jobtype, one.options, one.create_dt) == (
        batch.jobtype,
        batch.options,
        batch.create_dt,
    )
    assert (one.spans, one.attempt, one.careful) == ((Span(post="p", first=3, count=1),), 3, False)


# Nothing has ended.


@pytest.mark.checklist("M68")
@pytest.mark.parametrize(
    ("reason", "pause_s", "careful"),
    [
        (StopReason.BUDGET, 0.0, False),
        (StopReason.OUTPUT, 0.0, False),
        (StopReason.TIMEOUT, 0.0, True),
        (StopReason.DIED, 0.0, True),
        (StopReason.PROTOCOL, 0.0, True),
        (StopReason.CLOSED, 1.0, False),
    ],
)
def test_a_batch_of_which_nothing_ended_goes_back_untouched(
    reason: StopReason, pause_s: float, careful: bool
) -> None:
    batch = batch_of(attempt=4, retries=3, window_left_s=-1.0)
    end = settled(batch, outcome_of(0, stop=reason))
    assert (end.fence, end.finished, end.successors) == (batch.fence, None, ())
    assert (end.free_after_s, end.careful) == (pause_s, careful)


# What is written about the end.


def test_the_end_says_what_was_measured() -> None:
    batch = batch_of(attempt=3, waited_s=2.5)
    done = settled(batch, outcome_of(10, run_s=0.75)).finished
    assert done is not None
    assert (done.id, done.jobtype, done.spans) == (batch.fence.id, batch.jobtype, batch.spans)
    assert (done.attempt, done.handler_version) == (3, VERSION)
    assert (done.done_dt, done.create_dt) == (NOW, batch.create_dt)
    assert (done.run_s, done.cpu_s, done.wait_s) == (0.75, 0.25, 2.5)
    assert (done.log, done.out.count(b"\n")) == (b"said something\n", 10)


def test_a_wait_is_never_negative() -> None:
    batch = replace(batch_of(), ready_dt=NOW + timedelta(seconds=5))
    done = settled(batch, outcome_of(10)).finished
    assert done is not None
    assert done.wait_s == 0
