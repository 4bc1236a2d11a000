"""The pool's decisions, without a process, a clock or a loop."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from runners.pool import Key, Plan, plan, room
from runners.settings import RunnerSettings

A: Key = ("acme", "python", "a@1")
B: Key = ("acme", "python", "b@1")
NOW = 100.0
TWO = RunnerSettings(max_contexts=2)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A context as `plan` sees it."""

    key: Key = A
    used_at: float = 0.0
    is_idle: bool = True
    is_prompt: bool = False
    spent: bool = False
    expired: bool = False

    def is_spent(self, now: float) -> bool:
        return self.spent

    def has_expired(self, now: float) -> bool:
        return self.expired


def busy(key: Key = A, *, is_prompt: bool = False, spent: bool = False) -> Seen:
    return Seen(key=key, is_idle=False, is_prompt=is_prompt, spent=spent)


OLD, YOUNG, OTHER = Seen(used_at=1.0), Seen(used_at=2.0), Seen(key=B)
STALE = Seen(key=B, expired=True)
PROMPT = busy(is_prompt=True)


@pytest.mark.checklist("M35", "M78")
@pytest.mark.parametrize(
    ("contexts", "expected"),
    [
        pytest.param([], Plan(start=True), id="nothing there yet"),
        pytest.param([YOUNG, OLD], Plan(use=YOUNG), id="the one last used"),
        pytest.param([OTHER], Plan(start=True), id="never another's context"),
        pytest.param([busy()], Plan(start=True), id="one more of the same"),
        pytest.param([busy(), OTHER], Plan(start=True, close=(OTHER,)), id="eviction"),
        pytest.param(
            [Seen(key=B, used_at=5.0), Seen(key=B, used_at=4.0)],
            Plan(start=True, close=(Seen(key=B, used_at=4.0),)),
            id="eviction of the one longest unused",
        ),
        pytest.param([busy(), busy(B)], Plan(), id="wait"),
        pytest.param([PROMPT, busy(B)], Plan(use=PROMPT), id="into the pipe"),
        pytest.param([PROMPT, OTHER], Plan(use=PROMPT), id="the pipe before an eviction"),
        pytest.param([PROMPT], Plan(start=True), id="a free place before the pipe"),
        pytest.param([busy(B, is_prompt=True)] * 2, Plan(), id="never another's pipe"),
        pytest.param([busy(is_prompt=True, spent=True), busy()], Plan(), id="no spent one"),
        pytest.param([STALE, busy()], Plan(start=True, close=(STALE,)), id="expired makes room"),
        pytest.param([STALE, OLD], Plan(use=OLD, close=(STALE,)), id="expired is closed anyway"),
    ],
)
def test_plan(contexts: list[Seen], expected: Plan[Seen]) -> None:
    assert plan(contexts, A, NOW, TWO) == expected


@pytest.mark.checklist("M36")
@pytest.mark.parametrize(
    ("contexts", "expected"),
    [
        ([], 2),
        ([OLD, OTHER], 2),
        ([busy(), OTHER], 1),
        ([busy(), busy(B)], 0),
        ([PROMPT, busy(B)], 1),
        ([busy(B, is_prompt=True), busy()], 0),
        ([STALE, busy()], 1),
    ],
)
def test_room(contexts: list[Seen], expected: int) -> None:
    assert room(contexts, A, NOW, TWO) == expected


def test_settings_must_make_sense() -> None:
    with pytest.raises(ValueError, match="max_contexts"):
        RunnerSettings(max_contexts=0)
