"""The state table row by row, exit codes, and spans against a model that lists every line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import strategies as st

from handlers.names import JobType
from queue_service import batch as states
from queue_service.batch import (
    DONE,
    FIRST_SYSID,
    FREE,
    LIVE_BEFORE,
    BadLine,
    Finished,
    NewBatch,
    Options,
    State,
    archived_dt,
    code_of,
    codes_of,
    cut_spans,
    pick_spans,
    state_of,
)
from queue_service.store.base import Sysid
from runners.base import Span
from tests.properties import given
from tests.sources import state_table

NOW = datetime(2026, 11, 18, 8, 0, tzinfo=UTC)
MS = timedelta(milliseconds=1)
FUTURE, PAST = NOW + timedelta(hours=1), NOW - timedelta(hours=1)
SYSID = str(Sysid(slot=3, epoch=7))
PARKED_DT = datetime(3001, 1, 1, tzinfo=UTC)

# The table of the module's docstring: its first three cells, and fields that are such a row.
ROWS = {
    ('`""`', "future", "DEFERRED"): [(FREE, FUTURE), (FREE, NOW + MS)],
    ('`""`', "due", "READY"): [(FREE, PAST), (FREE, NOW), (FREE, NOW - MS)],
    ("sysid (+ `gen`)", "future = lease end", "RUNNING"): [(SYSID, FUTURE), (SYSID, NOW + MS)],
    ("sysid", "past", "ABANDONED"): [(SYSID, PAST), (SYSID, NOW), (SYSID, NOW - MS)],
    ("`__done`", "finish + 1000 years", "DONE"): [(DONE, archived_dt(NOW))],
    ("other `__words`", "beyond the year 3000", "PARKED"): [
        ("__paused", PARKED_DT),
        ("__suspended", PARKED_DT),
    ],
}


@pytest.mark.checklist("M6", "M8", "M10", "M15", "M16")
def test_the_rows_above_are_the_table_of_the_module() -> None:
    _, *rows = state_table(states.__doc__ or "")
    assert {(lock, dt, state) for lock, dt, state, _ in rows} == set(ROWS)
    assert [state for _, _, state, _ in rows] == [state.name for state in State]


@pytest.mark.checklist("M6", "M8", "M10", "M15", "M16")
@pytest.mark.parametrize("row", ROWS)
def test_a_state_is_read_off_lock_and_dt(row: tuple[str, str, str]) -> None:
    for lock, dt in ROWS[row]:
        assert state_of(lock, dt, NOW) is State[row[2]]


@pytest.mark.checklist("M6", "M8", "M10")
@given(
    st.sampled_from([FREE, DONE, "__paused", "s0.1", "s9.99"]),
    st.datetimes(datetime(1990, 1, 1), datetime(4000, 1, 1), timezones=st.just(UTC)),
)
def test_only_what_is_unlocked_and_due_is_ready(lock: str, dt: datetime) -> None:
    assert (state_of(lock, dt, NOW) is State.READY) == (lock == "" and dt <= NOW)


@pytest.mark.checklist("M16")
@pytest.mark.parametrize("lock", [DONE, "__paused"])
def test_what_is_done_or_parked_is_never_eligible_and_never_expires(lock: str) -> None:
    """Not even when its dt has passed."""
    for now in (NOW, NOW + timedelta(days=1000 * 366), datetime(9999, 1, 1, tzinfo=UTC)):
        for dt in (PAST, NOW, archived_dt(NOW)):
            assert state_of(lock, dt, now) in (State.DONE, State.PARKED)


@pytest.mark.checklist("M15")
@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (datetime(2026, 11, 18, 8, tzinfo=UTC), datetime(3026, 11, 18, 8, tzinfo=UTC)),
        (datetime(2028, 2, 29, 12, tzinfo=UTC), datetime(3028, 2, 29, 12, tzinfo=UTC)),
        # A thousand years after these there is no 29th of February.
        (datetime(2000, 2, 29, 12, tzinfo=UTC), datetime(3000, 3, 1, 12, tzinfo=UTC)),
        (datetime(2400, 2, 29, 23, 59, tzinfo=UTC), datetime(3400, 3, 1, 23, 59, tzinfo=UTC)),
        (datetime(2099, 12, 31, 23, tzinfo=UTC), datetime(3099, 12, 31, 23, tzinfo=UTC)),
    ],
)
def test_an_archived_batch_is_put_a_thousand_years_on(done: datetime, expected: datetime) -> None:
    assert archived_dt(done) == expected


@pytest.mark.checklist("M15")
@given(st.datetimes(datetime(1990, 1, 1), datetime(2899, 1, 1), timezones=st.just(UTC)))
def test_nothing_live_is_as_late_as_what_is_archived(done: datetime) -> None:
    assert archived_dt(done) > LIVE_BEFORE > done


@pytest.mark.checklist("M10", "M16")
def test_locks_of_daemons_are_a_range_of_their_own() -> None:
    sysids = [str(Sysid(slot=slot, epoch=epoch)) for slot in (0, 9, 10) for epoch in (1, 99)]
    assert all(sysid >= FIRST_SYSID for sysid in sysids)
    assert all(word < FIRST_SYSID for word in (FREE, DONE, "__paused", "__zzz"))


@pytest.mark.checklist("M39", "M87")
@pytest.mark.parametrize(
    ("exitcodes", "code"),
    [
        ((100, 101, 150, 199), "retry"),
        ((200, 201, 299), "ok"),
        ((400, 404, 499), "failed"),
        ((500, 501, 502, 504, 599), "error"),
        ((0, 1, 99, 300, 399, 600, 999, 1000, -1, -100), "error"),
    ],
)
def test_an_exit_code_is_one_of_four_codes(exitcodes: tuple[int, ...], code: str) -> None:
    assert {code_of(exitcode) for exitcode in exitcodes} == {code}


def finished(ok: int, *exitcodes: int) -> Finished:
    return Finished(
        id="p-0.1",
        jobtype=JobType("acme", "resize"),
        spans=(Span(post="p", first=0, count=ok + len(exitcodes)),),
        count=ok + len(exitcodes),
        data=b"",
        attempt=1,
        ok=ok,
        bad=tuple(BadLine(n, exitcode, again=False) for n, exitcode in enumerate(exitcodes)),
        out=b"",
        log=b"",
        done_dt=NOW,
        create_dt=NOW,
        run_s=0.0,
        cpu_s=0.0,
        wait_s=0.0,
        handler_version=1,
    )


@pytest.mark.checklist("M46")
@pytest.mark.parametrize(
    ("done", "codes"),
    [
        (finished(3), {"ok": 3}),
        (finished(0, 500), {"ok": 0, "error": 1}),
        (finished(2, 100, 404, 400, 500, 502, 504), {"ok": 2, "retry": 1, "failed": 2, "error": 3}),
    ],
)
def test_the_four_outcomes_are_counted_apart(done: Finished, codes: dict[str, int]) -> None:
    assert codes_of(done) == codes
    assert codes_of(done).total() == done.count


SPANS = st.lists(
    st.builds(
        lambda post, first, count: Span(post=post, first=first, count=count),
        st.sampled_from("pqr"),
        st.integers(0, 12),
        st.integers(1, 5),
    ),
    min_size=1,
    max_size=6,
).map(tuple)


def listed(spans: tuple[Span, ...]) -> list[tuple[str, int]]:
    """Every line by itself: what spans stand for."""
    return [(span.post, span.first + n) for span in spans for n in range(span.count)]


@given(SPANS, st.data())
def test_cutting_spans_is_cutting_the_list_of_lines(
    spans: tuple[Span, ...], data: st.DataObject
) -> None:
    lines = data.draw(st.integers(0, len(listed(spans))))
    head, rest = cut_spans(spans, lines)
    assert listed(head) == listed(spans)[:lines]
    assert listed(rest) == listed(spans)[lines:]
    assert all(span.count > 0 for span in head + rest)
    assert len(head) + len(rest) <= len(spans) + 1


@given(SPANS, st.data())
def test_picking_spans_is_picking_from_the_list_of_lines(
    spans: tuple[Span, ...], data: st.DataObject
) -> None:
    lines = listed(spans)
    indices = sorted(data.draw(st.sets(st.integers(0, len(lines) - 1))))
    picked = pick_spans(spans, indices)
    assert listed(picked) == [lines[index] for index in indices]
    for one, following in pairwise(picked):  # neighbours are joined
        assert (one.post, one.first + one.count) != (following.post, following.first)


def test_a_batch_is_named_by_its_first_job_and_attempt() -> None:
    def new(first: int, attempt: int) -> NewBatch:
        return NewBatch(
            jobtype=JobType("acme", "resize"),
            spans=(Span(post="p", first=first, count=2), Span(post="q", first=0, count=9)),
            count=11,
            data=b"x\n" * 11,
            dt=NOW,
            attempt=attempt,
            options=Options(
                priority=50, timeout_s=1.0, retries=1, retry_delay_s=None, window_s=9.0
            ),
            create_dt=NOW,
        )

    assert new(3, 1).id == "p-3.1"
    assert len({new(first, attempt).id for first in range(3) for attempt in range(3)}) == 9
