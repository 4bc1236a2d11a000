"""Property tests judge results and never speed: a machine that is busy must not fail them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis.strategies import SearchStrategy

_Test = Callable[..., None]


def given(*drawn: SearchStrategy[Any], **named: SearchStrategy[Any]) -> Callable[[_Test], _Test]:
    """`hypothesis.given` without a deadline for each example."""

    def decorate(test: _Test) -> _Test:
        return hypothesis.settings(deadline=None)(hypothesis.given(*drawn, **named)(test))

    return decorate
