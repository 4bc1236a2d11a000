"""No verdict loses a job or runs one twice: every line is accounted for, whatever the outcome."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st

from queue_service.batch import Batch
from runners.base import Bad, Outcome, Span, StopReason
from tests.properties import given
from tests.verdicts import NOW, batch_of, ids_of, jobs_of, outcome_of, settled

LOST = (StopReason.TIMEOUT, StopReason.DIED, StopReason.PROTOCOL)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    posts = draw(st.lists(st.sampled_from("pqrstu"), min_size=1, max_size=4, unique=True))
    spans = tuple(
        Span(post=post, first=draw(st.integers(0, 9)), count=draw(st.integers(1, 8)))
        for post in posts
    )
    return batch_of(
        spans,
        attempt=draw(st.integers(1, 4)),
        retries=draw(st.integers(0, 4)),
        retry_delay_s=draw(st.none() | st.sampled_from([0.0, 30.0])),
        window_left_s=draw(st.sampled_from([-1.0, 0.0, 20.0, 3600.0])),
        careful=draw(st.booleans()),
    )


@st.composite
def outcomes(draw: st.DrawFn, batch: Batch) -> Outcome:
    """Any outcome a runner may answer with."""
    done = draw(st.integers(0, batch.count))
    indices = sorted(draw(st.sets(st.integers(0, done - 1)))) if done else []
    exitcodes = st.sampled_from([100, 150, 400, 404, 500, 502, 599])
    delays = st.none() | st.sampled_from([0.0, 10.0, 1e9])
    bad = [Bad(index, draw(exitcodes), draw(delays)) for index in indices]
    if done == batch.count:
        return outcome_of(done, *bad)
    reasons = [reason for reason in StopReason if done == 0 or reason is not StopReason.UNLOADABLE]
    reason = draw(st.sampled_from(reasons))
    blamed = done if reason in LOST and draw(st.booleans()) else None
    run_s = draw(st.sampled_from([0.0, 0.001, 1.0, 60.0]))
    return outcome_of(done, *bad, stop=reason, blamed=blamed, run_s=run_s)


CASES = batches().flatmap(lambda batch: st.tuples(st.just(batch), outcomes(batch)))


@pytest.mark.checklist("M44", "M68")
@given(CASES, st.integers(0, 1000))
def test_every_line_is_accounted_for_once_and_in_order(
    case: tuple[Batch, Outcome], seed: int
) -> None:
    batch, outcome = case
    end = settled(batch, outcome, seed)
    done = end.finished
    if done is None:
        # Freed as it is: nothing was said to have ended, so nothing may be run besides.
        assert (outcome.done, end.successors) == (0, ())
        return
    ids = ids_of(batch.spans)
    position = {job: number for number, job in enumerate(ids)}
    ended = jobs_of(done.data)
    assert ended == ids[: done.count] == ids_of(done.spans)
    assert done.count >= outcome.done
    assert done.out.count(b"\n") == done.count
    assert done.ok + len(done.bad) == done.count
    assert end.narrowed == (done.count < batch.count)

    where: Counter[tuple[str, int]] = Counter()
    for one in end.successors:
        jobs = jobs_of(one.data)
        assert jobs == ids_of(one.spans)
        assert one.count == len(jobs) > 0
        assert [position[job] for job in jobs] == sorted(position[job] for job in jobs)
        assert one.dt >= NOW
        where.update((job, one.attempt) for job in jobs)
    again = {(ended[line.index], batch.attempt + 1) for line in done.bad if line.again}
    left_over = {(job, batch.attempt) for job in ids[done.count :]}
    assert where == Counter(again | left_over)


@given(CASES)
def test_no_two_batches_of_a_verdict_have_one_id(case: tuple[Batch, Outcome]) -> None:
    batch, outcome = case
    names = [one.id for one in settled(batch, outcome).successors]
    assert len({batch.fence.id, *names}) == len(names) + 1


@pytest.mark.checklist("M40", "M41")
@given(CASES)
def test_what_ended_well_or_failed_is_never_run_again(case: tuple[Batch, Outcome]) -> None:
    batch, outcome = case
    end = settled(batch, outcome)
    if end.finished is None:
        return
    final = set(range(outcome.done)) - {
        line.index for line in outcome.bad if line.exitcode // 100 != 4
    }
    ids = ids_of(batch.spans)
    running = {job for one in end.successors for job in jobs_of(one.data)}
    assert not running & {ids[index] for index in final}


@pytest.mark.checklist("M44")
@given(CASES)
def test_no_attempt_is_made_beyond_the_limits(case: tuple[Batch, Outcome]) -> None:
    batch, outcome = case
    for one in settled(batch, outcome).successors:
        if one.attempt > batch.attempt:
            assert one.attempt <= batch.options.retries + 1
            assert one.dt <= batch.expire_dt
        assert one.create_dt == batch.create_dt  # or the window would begin anew
        assert (one.jobtype, one.options) == (batch.jobtype, batch.options)
