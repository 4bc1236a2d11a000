"""What a context has been asked and still owes: one object for each request in its pipe.

An ask takes in the frames that answer it and settles its reply, once. Sending it, and watching how
long it takes, is the context's part.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from runners.base import Outcome, StopReason
from runners.wire import Answer, Decoder, Tally

_T = TypeVar("_T")


class ContextLost(Exception):
    """The context went away before it could answer."""

    def __init__(self, reason: StopReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(slots=True, kw_only=True, eq=False)
class Ask(ABC, Generic[_T]):
    """A request that was sent, in the order of the pipe."""

    patience_s: float
    reply: asyncio.Future[_T]

    @abstractmethod
    def advance(self, decoder: Decoder) -> bool:
        """Take in the next frame; False when none is complete."""

    @abstractmethod
    def lose(self, reason: StopReason, detail: str) -> None:
        """Settle the reply after the child was lost at work on this."""

    def settle(self, value: _T) -> None:
        if not self.reply.cancelled():
            self.reply.set_result(value)


@dataclass(slots=True, kw_only=True, eq=False)
class Preparation(Ask[Answer]):
    """A load or a check."""

    def advance(self, decoder: Decoder) -> bool:
        answer = decoder.answer()
        if answer is not None:
            self.settle(answer)
        return answer is not None

    def lose(self, reason: StopReason, detail: str) -> None:
        self.reply.set_exception(ContextLost(reason, detail))


@dataclass(slots=True, kw_only=True, eq=False)
class Run(Ask[Outcome]):
    """A batch, and what has been reported of it."""

    tally: Tally

    def advance(self, decoder: Decoder) -> bool:
        has_advanced = decoder.report(self.tally)
        if self.tally.ended:
            self.settle(self.tally.outcome())
        return has_advanced

    def lose(self, reason: StopReason, detail: str) -> None:
        self.settle(self.tally.lost(reason, detail))
