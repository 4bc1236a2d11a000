"""Verdicts on jobs that lose their contexts or daemons: strikes, and the shelf for poison."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from queue_service.batch import BadLine, Batch, NewBatch, Settlement, codes_of, taken
from queue_service.verdict import POISON, must_begin_alone, shelve
from runners.base import Bad, Span, StopReason
from tests.verdicts import NOW, POLICY, batch_of, delay_of, ids_of, jobs_of, outcome_of, settled

LOST = [StopReason.TIMEOUT, StopReason.DIED, StopReason.PROTOCOL]
ONE = (Span(post="p", first=3, count=1),)


def struck(reason: StopReason, *, strikes: int, retries: int = 10) -> Settlement:
    """The verdict on a job that has these strikes and lost its context again."""
    batch = replace(batch_of(ONE, attempt=strikes + 1, retries=retries), strikes=strikes)
    return settled(batch, outcome_of(0, stop=reason, blamed=0))


def recovered(batch: Batch, times: int) -> Settlement | None:
    again = replace(batch, recoveries=times, careful=True)
    return shelve(again, now=NOW, policy=POLICY, rng=Random(1))


def next_of(end: Settlement) -> NewBatch:
    (one,) = end.successors
    return one


@pytest.mark.parametrize("reason", LOST)
def test_the_job_to_blame_is_run_alone_and_watched_with_a_strike_more(reason: StopReason) -> None:
    batch = batch_of(retry_delay_s=30.0, careful=True)
    end = settled(batch, outcome_of(5, Bad(1, 500), Bad(2, 100), stop=reason, blamed=5))
    others, alone, rest = end.successors
    assert jobs_of(others.data) == ["p-1", "p-2"]  # an equal pause does not bring them together
    assert (others.attempt, others.strikes, others.careful) == (2, 0, False)
    assert jobs_of(alone.data) == ["p-5"]
    assert (alone.attempt, alone.strikes, alone.careful, delay_of(alone)) == (2, 1, True, 30.0)
    assert jobs_of(rest.data) == [f"p-{n}" for n in range(6, 10)]
    assert (rest.attempt, rest.strikes, rest.dt) == (1, 0, NOW)


@pytest.mark.parametrize("reason", LOST)
def test_three_strikes_shelve_the_job_whatever_retries_are_left(reason: StopReason) -> None:
    exitcode = 504 if reason is StopReason.TIMEOUT else 502
    for strikes in (0, 1):
        end = struck(reason, strikes=strikes)
        assert end.finished is not None
        assert end.finished.bad == (BadLine(0, exitcode, True),)
        assert next_of(end).strikes == strikes + 1
    end = struck(reason, strikes=2)
    assert end.finished is not None
    assert (end.finished.bad, end.successors) == ((BadLine(0, POISON, False),), ())
    assert codes_of(end.finished) == {"ok": 0, "error": 1}
    said = json.loads(end.finished.out)["error"]
    assert said.startswith("poison")
    assert f"it was {reason}" in said


def test_a_job_without_retries_ends_at_its_first_strike() -> None:
    end = struck(StopReason.DIED, strikes=0, retries=0)
    assert end.finished is not None
    assert (end.finished.bad, end.successors) == ((BadLine(0, 502, False),), ())


def test_strikes_are_carried_by_batches_until_the_job_has_ended() -> None:
    one = next_of(struck(StopReason.DIED, strikes=0))
    # An ordinary error is no strike, and makes none forgotten.
    one = next_of(settled(taken(one, "s1.1", NOW), outcome_of(1, Bad(0, 500))))
    assert (one.strikes, one.careful, one.attempt) == (1, True, 3)
    one = next_of(settled(taken(one, "s1.1", NOW), outcome_of(0, stop=LOST[0], blamed=0)))
    assert (one.strikes, one.attempt) == (2, 4)
    end = settled(taken(one, "s1.1", NOW), outcome_of(1))
    assert end.finished is not None
    assert (end.finished.ok, end.successors) == (1, ())


@pytest.mark.parametrize("reason", [StopReason.CLOSED, StopReason.BUDGET, StopReason.OUTPUT])
def test_a_stop_that_is_nobodys_fault_is_no_strike(reason: StopReason) -> None:
    end = settled(replace(batch_of(ONE), strikes=2), outcome_of(0, stop=reason))
    assert (end.finished, end.successors) == (None, ())


# Daemons that die.


@pytest.mark.parametrize(("recoveries", "alone"), [(0, False), (1, False), (2, True), (5, True)])
def test_a_batch_that_was_recovered_twice_begins_with_one_job(recoveries: int, alone: bool) -> None:
    assert must_begin_alone(replace(batch_of(), recoveries=recoveries)) is alone


@pytest.mark.parametrize(
    ("strikes", "recoveries", "shelved"),
    [(0, 0, 0), (2, 0, 0), (0, 2, 0), (0, 3, 1), (1, 1, 0), (1, 2, 1), (2, 1, 1), (0, 4, 1)],
)
def test_a_recovery_is_a_strike_for_a_job_that_was_alone(
    strikes: int, recoveries: int, shelved: int
) -> None:
    end = recovered(replace(batch_of(ONE), strikes=strikes), recoveries)
    assert (end is not None) == bool(shelved)
    if end is not None:
        assert end.finished is not None
        assert (end.finished.bad, end.successors) == ((BadLine(0, POISON, False),), ())


def test_of_many_jobs_only_the_first_is_shelved_and_the_others_go_on() -> None:
    batch = batch_of((Span(post="p", first=0, count=129),), attempt=2)
    assert recovered(batch, 2) is None
    end = recovered(batch, 3)
    assert end is not None
    assert end.finished is not None
    assert (end.finished.count, end.finished.bad) == (1, (BadLine(0, POISON, False),))
    assert [part.count for part in end.successors] == [2] * 64
    assert {(p.attempt, p.careful, p.strikes, p.dt) for p in end.successors} == {(2, True, 0, NOW)}
    left = [job for part in end.successors for job in jobs_of(part.data)]
    assert left == ids_of(batch.spans)[1:]


def test_after_its_first_job_a_recovered_batch_is_shared_out_in_small_parts() -> None:
    batch = replace(batch_of((Span(post="p", first=0, count=129),), careful=True), recoveries=2)
    end = settled(batch, outcome_of(1, stop=StopReason.BUDGET, run_s=1e-6))
    assert end.finished is not None
    assert (end.finished.ok, end.finished.bad) == (1, ())
    assert [part.count for part in end.successors] == [2] * 64
