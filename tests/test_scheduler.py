"""Schedulers: whose turn it is. Pure policies, so every case is a list and an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import strategies as st

from handlers.names import JobType
from queue_service import scheduler
from queue_service.scheduler import POLICIES, UnknownScheduler, round_robin
from queue_service.scheduler.base import Candidate, Scheduler
from queue_service.scheduler.oldest import OldestFirst
from queue_service.scheduler.round_robin import RoundRobin
from queue_service.settings import load
from tests.properties import given

NOW = datetime(2026, 11, 18, 8, 0, tzinfo=UTC)
policies = pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)


def of(name: str, **more: object) -> Candidate:
    """`acme/resize` as a candidate."""
    return Candidate(jobtype=JobType(*name.split("/")), **more)  # type: ignore[arg-type]


def turns(policy: Scheduler, candidates: Sequence[Candidate], count: int) -> list[str]:
    return [str(policy.select(candidates)) for _ in range(count)]


@pytest.mark.checklist("M96")
@policies
def test_nothing_to_choose_from_is_none_and_no_error(make: Callable[[], Scheduler]) -> None:
    policy = make()
    assert policy.select([]) is None
    assert policy.select([of("a/f")]) == JobType("a", "f")
    assert policy.select([]) is None


NAMES = [f"{tenant}/{type_}" for tenant in "abc" for type_ in ("f", "g", "f@2")]
CANDIDATES = st.lists(
    st.builds(
        of,
        st.sampled_from(NAMES),
        jobs=st.none() | st.integers(0, 10**9),
        oldest=st.none() | st.integers(0, 5).map(lambda s: NOW - timedelta(seconds=s)),
        warm=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda candidate: candidate.jobtype,
)


@pytest.mark.checklist("M82", "M83", "M96")
@policies
@given(rounds=st.lists(CANDIDATES, max_size=12))
def test_the_answer_is_always_one_of_the_given_or_none(
    make: Callable[[], Scheduler], rounds: list[list[Candidate]]
) -> None:
    policy = make()
    for candidates in rounds:
        chosen = policy.select(candidates)
        assert (chosen is None) == (not candidates)
        assert chosen is None or chosen in {candidate.jobtype for candidate in candidates}
        if chosen is not None:
            policy.jobs_started(chosen, 3)
            policy.jobs_stopped(chosen, 3)


@pytest.mark.checklist("M83")
@policies
@pytest.mark.parametrize(
    "counts",
    [
        pytest.param((1, 1, 1), id="exact"),
        pytest.param((10**9, 1, 7), id="estimated"),
        pytest.param((None, None, None), id="missing"),
        pytest.param((None, 0, 5), id="some missing"),
    ],
)
def test_counts_may_be_of_any_quality(
    make: Callable[[], Scheduler], counts: tuple[int | None, ...]
) -> None:
    """No policy of ours weighs them, so that a deep backlog buys no turns."""
    candidates = [of(f"{t}/f", jobs=n) for t, n in zip("abc", counts, strict=True)]
    without = [of(f"{t}/f") for t in "abc"]
    assert turns(make(), candidates, 6) == turns(make(), without, 6)


def test_tenants_take_turns() -> None:
    candidates = [of("c/f"), of("a/f"), of("b/f")]
    assert turns(RoundRobin(), candidates, 6) == ["a/f", "b/f", "c/f"] * 2


def test_a_tenant_with_many_types_gets_no_more_turns() -> None:
    candidates = [of(f"big/f{n}") for n in range(1000)] + [of("small/f")]
    served = Counter(name.split("/")[0] for name in turns(RoundRobin(), candidates, 10))
    assert served == {"big": 5, "small": 5}


def test_types_of_a_tenant_take_turns_among_themselves() -> None:
    candidates = [of("a/f"), of("a/g"), of("a/h"), of("b/f")]
    chosen = turns(RoundRobin(), candidates, 6)
    assert [name for name in chosen if name != "b/f"] == ["a/f", "a/g", "a/h"]


@pytest.mark.checklist("M19")
def test_versions_of_a_type_take_turns_too() -> None:
    assert turns(RoundRobin(), [of("a/f@1"), of("a/f@2")], 4) == ["a/f@1", "a/f@2"] * 2


@given(st.sets(st.sampled_from(NAMES), min_size=1), st.integers(1, 60))
def test_turns_of_tenants_never_differ_by_more_than_one(names: set[str], count: int) -> None:
    candidates = [of(name) for name in names]
    served = Counter(name.split("/")[0] for name in turns(RoundRobin(), candidates, count))
    everyone = [served[tenant] for tenant in {name.split("/")[0] for name in names}]
    assert max(everyone) - min(everyone) <= 1


def test_who_comes_late_is_served_next_but_does_not_catch_up() -> None:
    policy = RoundRobin()
    turns(policy, [of("a/f")], 100)
    assert turns(policy, [of("a/f"), of("b/f")], 4) == ["b/f", "a/f", "b/f", "a/f"]


def test_warmth_decides_among_equals_only() -> None:
    policy = RoundRobin()
    cold_a, warm_a, warm_b = of("a/f"), of("a/g", warm=True), of("b/f", warm=True)
    assert str(policy.select([cold_a, warm_a])) == "a/g"
    assert str(policy.select([cold_a, warm_a])) == "a/f", "warm, but it just had its turn"
    assert str(policy.select([cold_a, warm_b])) == "b/f"
    assert str(policy.select([cold_a, warm_b])) == "a/f", "warm, but it is the other tenant's turn"


@pytest.mark.checklist("M84")
def test_running_jobs_are_counted_by_type() -> None:
    policy, f, g = RoundRobin(), JobType("a", "f"), JobType("a", "g")
    policy.jobs_started(f, 1000)
    policy.jobs_started(g, 5)
    policy.jobs_started(f, 10)
    policy.jobs_stopped(f, 1000)
    assert policy.running == {f: 10, g: 5}
    policy.jobs_stopped(g, 5)
    policy.jobs_stopped(f, 10)
    assert not policy.running


@pytest.mark.checklist("M84")
@policies
def test_stopped_does_not_imply_finished(make: Callable[[], Scheduler]) -> None:
    """A type whose jobs have stopped can be chosen at once: they may wait for another attempt."""
    policy, f = make(), JobType("a", "f")
    for _ in range(3):
        assert policy.select([of("a/f")]) == f
        policy.jobs_started(f, 7)
        policy.jobs_stopped(f, 7)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_robin, "_REMEMBERED", 8)
    policy = RoundRobin()
    for number in range(100):
        policy.select([of(f"t{number}/f")])
        assert len(policy._tenant_turn) <= 8
        assert len(policy._type_turn) <= 8


def test_who_was_forgotten_is_not_served_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_robin, "_REMEMBERED", 4)
    candidates = [of(f"t{number}/f") for number in range(3)]
    policy = RoundRobin()
    chosen = []
    for number in range(60):
        policy.select([of(f"x{number}/f")])  # strangers that push others out of memory
        chosen.append(str(policy.select(candidates)))
    assert all(one != following for one, following in pairwise(chosen))


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        ([of("a/f", oldest=NOW), of("b/f", oldest=NOW - timedelta(seconds=1))], "b/f"),
        ([of("a/f"), of("b/f", oldest=NOW)], "b/f"),
        ([of("b/f", oldest=NOW), of("a/f", oldest=NOW, warm=True)], "a/f"),
        ([of("b/f", oldest=NOW, warm=True), of("a/f", oldest=NOW)], "b/f"),
        ([of("a/f", oldest=NOW, warm=True), of("b/f", oldest=NOW - timedelta(hours=1))], "b/f"),
        ([of("b/f"), of("a/f")], "a/f"),
    ],
)
def test_oldest_first(candidates: list[Candidate], expected: str) -> None:
    assert turns(OldestFirst(), candidates, 3) == [expected] * 3


@pytest.mark.checklist("M85")
@pytest.mark.parametrize(
    ("environ", "kind"),
    [
        ({}, RoundRobin),
        ({"HEARTH_SCHEDULER": "round-robin"}, RoundRobin),
        ({"HEARTH_SCHEDULER": "oldest"}, OldestFirst),
    ],
)
def test_the_policy_is_named_in_the_settings(environ: dict[str, str], kind: type) -> None:
    made = [scheduler.make(load({}, environ).settings.scheduler) for _ in range(2)]
    assert [type(policy) for policy in made] == [kind, kind]
    assert made[0] is not made[1]


@pytest.mark.checklist("M85")
def test_a_new_policy_is_a_row_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    class LastByName(OldestFirst):
        def select(self, candidates: Sequence[Candidate]) -> JobType | None:
            return max((candidate.jobtype for candidate in candidates), default=None)

    monkeypatch.setitem(POLICIES, "last-by-name", LastByName)
    assert turns(scheduler.make("last-by-name"), [of("a/f"), of("b/f")], 1) == ["b/f"]


@pytest.mark.checklist("M85")
@pytest.mark.parametrize("name", ["", "fifo", "Round-Robin", "round_robin", "oldest "])
def test_an_unknown_policy_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownScheduler, match="known are round-robin, oldest"):
        scheduler.make(name)
