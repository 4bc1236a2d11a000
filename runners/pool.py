"""The warm contexts of all tenants: which call gets which, which are started, which are closed.

`plan` decides and touches nothing; `Pool` acts on it. What happens inside a context is none of its
business, and neither is the order in which jobtypes get their turn: that is the scheduler's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from handlers.definition import Handler
from runners.base import Call, Outcome, StopReason, nothing_done
from runners.context import Context, NotBegun
from runners.settings import RunnerSettings

Key = tuple[str, str, str]


class Candidate(Protocol):
    """What `plan` wants to know of a context; `Context` says what each means."""

    @property
    def key(self) -> Key: ...
    @property
    def used_at(self) -> float: ...
    @property
    def is_idle(self) -> bool: ...
    @property
    def is_prompt(self) -> bool: ...
    def is_spent(self, now: float) -> bool: ...
    def has_expired(self, now: float) -> bool: ...


_C = TypeVar("_C", bound=Candidate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Generic[_C]):
    """Close these, then use that one or start a new one; neither of both means wait."""

    use: _C | None = None
    start: bool = False
    close: tuple[_C, ...] = ()


def plan(contexts: Sequence[_C], wanted: Key, now: float, settings: RunnerSettings) -> Plan[_C]:
    """Find a place for a call of `wanted` among the contexts."""
    expired = tuple(context for context in contexts if context.has_expired(now))
    kept = [context for context in contexts if context not in expired]
    idle = sorted((context for context in kept if context.is_idle), key=lambda c: c.used_at)
    warm = [context for context in idle if context.key == wanted]
    if warm:
        # The last one used, so that the others grow old enough to be given up.
        return Plan(use=warm[-1], close=expired)
    if len(kept) < settings.max_contexts:
        return Plan(start=True, close=expired)
    # Before another's warm context is given up for a second one of this kind, its pipe is used.
    for context in kept:
        if context.key == wanted and context.is_prompt and not context.is_spent(now):
            return Plan(use=context, close=expired)
    if idle:
        return Plan(start=True, close=(*expired, idle[0]))
    return Plan(close=expired)


def room(contexts: Iterable[Candidate], wanted: Key, now: float, settings: RunnerSettings) -> int:
    """How many calls of `wanted` `plan` would find a place for, one after the other."""
    taken = prompt = 0
    for context in contexts:
        taken += not context.is_idle and not context.has_expired(now)
        prompt += context.key == wanted and context.is_prompt and not context.is_spent(now)
    return max(0, settings.max_contexts - taken) + prompt


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiter:
    handler: Handler
    turn: asyncio.Future[Context | None]


class Pool:
    """Runs calls in warm contexts, at most `max_contexts` of them; others wait in their order."""

    def __init__(
        self, settings: RunnerSettings, create: Callable[[Handler, float], Context]
    ) -> None:
        self._settings = settings
        self._create = create
        self._clock = asyncio.get_running_loop().time
        self._contexts: list[Context] = []
        self._dying: set[Context] = set()
        self._waiters: deque[_Waiter] = deque()
        self._is_closed = False

    async def run(self, call: Call) -> Outcome:
        """Run the call in a context that suits it; exactly one Outcome."""
        lost = "the pool is closed"
        for _ in range(2):
            context = await self._take(call.handler)
            if context is None:
                return nothing_done(StopReason.CLOSED, lost)
            try:
                return await context.run(call)
            except NotBegun:
                # No job of it was begun, so that running it elsewhere repeats nothing.
                lost = "the context was lost before it came to this call"
            except OSError as error:
                return nothing_done(StopReason.CLOSED, f"could not start a context: {error}")
            finally:
                self._give_back(context)
        return nothing_done(StopReason.DIED, lost)

    def room(self, handler: Handler) -> int:
        if self._is_closed:
            return 0
        found = room(self._contexts, handler.key, self._clock(), self._settings)
        return max(0, found - len(self._waiters))

    def warm(self) -> Collection[Key]:
        return {context.key for context in self._contexts if context.is_idle}

    def reap(self, now: float) -> int:
        """Close what has been idle, or has lived, for too long; return how many that were."""
        expired = [context for context in self._contexts if context.has_expired(now)]
        for context in expired:
            self._discard(context, "not needed any more")
        return len(expired)

    async def close(self) -> None:
        """End every context and every wait; afterwards no process of ours is left."""
        self._is_closed = True
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.turn.done():
                waiter.turn.set_result(None)
        for context in tuple(self._contexts):
            self._discard(context, "the runner is closing")
        await asyncio.gather(*(context.gone() for context in self._dying))
        self._dying.clear()

    def __repr__(self) -> str:
        return f"<Pool {self._contexts} waiting={len(self._waiters)}>"

    async def _take(self, handler: Handler) -> Context | None:
        """A context claimed for a call of `handler`; None when the pool is closed."""
        if self._is_closed:
            return None
        # Strictly in order: a call that slipped past could keep a context busy for ever.
        context = None if self._waiters else self._grant(handler)
        if context is not None:
            return context
        waiter = _Waiter(handler=handler, turn=asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.cancelled():
                self._serve_waiters()
            elif (granted := waiter.turn.result()) is not None:
                self._give_back(granted)
            raise

    def _grant(self, handler: Handler) -> Context | None:
        now = self._clock()
        decision = plan(self._contexts, handler.key, now, self._settings)
        for closing in decision.close:
            self._discard(closing, "made way for another")
        context = decision.use
        if decision.start:
            context = self._create(handler, now)
            self._contexts.append(context)
        if context is not None:
            context.claim()
        return context

    def _give_back(self, context: Context) -> None:
        now = self._clock()
        context.release(now)
        if context.has_expired(now) and context in self._contexts:
            self._discard(context, "used up")
        self._serve_waiters()

    def _serve_waiters(self) -> None:
        while self._waiters:
            waiter = self._waiters[0]
            if not waiter.turn.cancelled():
                granted = self._grant(waiter.handler)
                if granted is None:
                    return
                waiter.turn.set_result(granted)
            self._waiters.popleft()

    def _discard(self, context: Context, why: str) -> None:
        self._contexts.remove(context)
        context.close(why)
        self._dying = {dying for dying in self._dying if not dying.is_gone} | {context}
