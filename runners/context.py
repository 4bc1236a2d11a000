"""One warm child: what it is asked, what it answered, how long it may take, when it is used up.

    NEW     no handler is loaded yet, perhaps not even a process started
    IDLE    loaded and waiting
    BUSY    claimed for one call, or for a second one that waits in its pipe
    CLOSED  gone for good; whatever went wrong leads here and never back

Which context a call gets is decided in `pool`; how a child is started and killed, in `sandbox`.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from enum import StrEnum
from typing import Any, TypeVar

from handlers.definition import Definition
from runners.asks import Ask, ContextLost, Preparation, Run
from runners.base import Call, Outcome, SourceError, StopReason, nothing_done
from runners.channel import Channel
from runners.languages import Language
from runners.sandbox import Confinement, Limits, Process
from runners.settings import RunnerSettings
from runners.wire import (
    FLUSH_S,
    Decoder,
    ProtocolError,
    Tally,
    encode_check,
    encode_load,
    encode_run,
    slot_of,
)

# A child reports up to FLUSH_S late; the rest is for a machine that is short of time itself.
_WATCH_SLACK_S = FLUSH_S + 0.2
_PROMPT_S = 0.05
_FRAMES_IN, _FRAMES_OUT = 3, 4
_T = TypeVar("_T")


class ContextState(StrEnum):
    NEW = "NEW"
    IDLE = "IDLE"
    BUSY = "BUSY"
    CLOSED = "CLOSED"


class NotBegun(Exception):
    """The context went away before it came to the call, which can as well be run again."""


class Context:
    """A child for one handler, or for the handlers of one tenant that share an `eid`."""

    def __init__(
        self,
        *,
        key: tuple[str, str, str],
        language: Language,
        confinement: Confinement,
        settings: RunnerSettings,
        now: float,
    ) -> None:
        self.key = key
        self.calls = 0
        self.jobs = 0
        self.used_at = now
        self._born_at = now
        self._language = language
        self._confinement = confinement
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._claims = 0
        self._loaded: set[str] = set()
        self._is_lost = False
        self._process: Process | None = None
        self._minder: asyncio.Task[None] | None = None
        self._channel: Channel | None = None
        self._decoder = Decoder()
        self._asks: deque[Ask[Any]] = deque()
        self._began_at = self._progress_at = now
        self._watch: asyncio.TimerHandle | None = None
        self._batch_s: float | None = None

    # What the pool asks.

    @property
    def state(self) -> ContextState:
        if self._is_lost:
            return ContextState.CLOSED
        if not self._loaded:
            return ContextState.NEW
        return ContextState.BUSY if self._claims else ContextState.IDLE

    @property
    def is_idle(self) -> bool:
        return self.state is ContextState.IDLE

    @property
    def is_prompt(self) -> bool:
        """Busy with one call of a kind that ends so soon that another may wait in its pipe."""
        is_fast = self._batch_s is not None and self._batch_s < _PROMPT_S
        return is_fast and self.state is ContextState.BUSY and self._claims == 1

    def is_spent(self, now: float) -> bool:
        """Has it served as much or as long as a context may?"""
        return (
            self.jobs >= self._settings.max_jobs_per_context
            or now - self._born_at >= self._settings.max_age_s
        )

    def has_expired(self, now: float) -> bool:
        """Is it not worth keeping: unclaimed, and either broken, spent, or long unused?"""
        if self._claims:
            return False
        is_stale = now - self.used_at >= self._settings.idle_s
        return not self.is_idle or is_stale or self.is_spent(now)

    @property
    def is_gone(self) -> bool:
        """Is it closed, with no process left behind?"""
        return self._is_lost and (self._minder is None or self._minder.done())

    def describe(self, now: float) -> str:
        tenant, lang, what = self.key
        age_s = now - self._born_at
        return f"<Context {lang} {tenant}/{what} {self.state} calls={self.calls} age={age_s:.0f}s>"

    def __repr__(self) -> str:
        return self.describe(self._loop.time())

    # A call's life.

    def claim(self) -> None:
        """Reserve it for a call that `run` will bring."""
        self._claims += 1

    def release(self, now: float) -> None:
        self._claims -= 1
        self.used_at = now

    async def run(self, call: Call) -> Outcome:
        """Run the call, loading its handler first where needed; exactly one Outcome.

        Raises NotBegun when the context was lost before it came to this call, OSError when no
        process could be started. Cancelling kills the context.
        """
        try:
            if slot_of(call.handler, call.secrets) not in self._loaded:
                refusal = await self._load(call)
                if refusal is not None:
                    detail = f"line {refusal.line}: {refusal.message}"
                    return nothing_done(StopReason.UNLOADABLE, detail)
        except ContextLost as lost:
            return nothing_done(lost.reason, str(lost))
        tally = Tally(count=call.count, careful=call.careful)
        ask = Run(patience_s=call.job_timeout_s, reply=self._loop.create_future(), tally=tally)
        outcome = await self._ask(ask, encode_run(call), call.data)
        self.calls += 1
        self.jobs += outcome.done
        return outcome

    async def check(self, definition: Definition) -> SourceError | None:
        """Compile without running. Raises ContextLost, or OSError if nothing could be started."""
        await self._start()
        return await self._prepare(encode_check(definition))

    def close(self, detail: str) -> None:
        """End it now; calls that are still running answer CLOSED."""
        if self._channel is not None:
            self._channel.drain()
        self._lose(StopReason.CLOSED, detail)

    async def gone(self) -> None:
        """Wait until a closed context has left no process behind."""
        if self._minder is not None:
            await asyncio.wait({self._minder})

    # Towards the child.

    async def _start(self) -> None:
        if self._channel is not None or self._is_lost:
            return
        self._channel = channel = Channel(self._take_in, self._on_end)
        child_in, child_out = channel.child_ends
        limits = Limits(
            memory_max_bytes=self._settings.memory_max_bytes,
            file_max_bytes=self._settings.file_max_bytes,
            open_files_max=self._settings.open_files_max,
        )
        try:
            fds = {_FRAMES_IN: child_in, _FRAMES_OUT: child_out}
            self._process = await self._confinement.spawn(self._language, fds, limits)
        finally:
            channel.release_child_ends()
            if self._process is None:
                self.close("could not be started")
        self._minder = asyncio.create_task(self._mind(self._process), name="mind context")
        if self._is_lost:
            self._process.kill()

    async def _load(self, call: Call) -> SourceError | None:
        await self._start()
        try:
            refusal = await self._prepare(encode_load(call.handler, call.secrets))
        except ContextLost as lost:
            if lost.reason is StopReason.CLOSED:
                raise
            raise ContextLost(StopReason.UNLOADABLE, f"while loading: {lost}") from lost
        if refusal is None:
            self._loaded.add(slot_of(call.handler, call.secrets))
        return refusal

    async def _prepare(self, frame: bytes) -> SourceError | None:
        patience_s = self._settings.start_timeout_s
        ask = Preparation(patience_s=patience_s, reply=self._loop.create_future())
        return (await self._ask(ask, frame)).error

    async def _ask(self, ask: Ask[_T], *frame: bytes) -> _T:
        if self._is_lost or self._channel is None:
            raise NotBegun
        self._asks.append(ask)
        if len(self._asks) == 1:
            self._begin(ask)
        self._channel.write(*frame)
        try:
            return await ask.reply
        except asyncio.CancelledError:
            # One that still waits in the pipe is dealt with when its turn comes: the call that is
            # being run has nothing to do with it.
            if self._asks and self._asks[0] is ask:
                self._lose(StopReason.DIED, "killed because its call was cancelled")
            raise

    def _begin(self, ask: Ask[Any]) -> None:
        """`ask` is now what the child works on: its time runs."""
        if ask.reply.cancelled():
            self._lose(StopReason.DIED, "killed because its call was cancelled")
            return
        self._began_at = self._progress_at = self._loop.time()
        self._watch_until(self._due_at(ask))

    # From the child.

    def _take_in(self, data: bytes) -> None:
        self._decoder.feed(data)
        try:
            while self._asks and self._asks[0].advance(self._decoder):
                self._progress_at = self._loop.time()
                if self._asks[0].reply.done():
                    self._conclude()
            if not self._asks and not self._is_lost and not self._decoder.is_empty:
                raise ProtocolError("the context sent something unasked")
        except ProtocolError as error:
            self._lose(StopReason.PROTOCOL, str(error))

    def _conclude(self) -> None:
        """The first ask has its reply; the next one begins."""
        ask = self._asks.popleft()
        if isinstance(ask, Run):
            took_s = self._progress_at - self._began_at
            self._batch_s = took_s if self._batch_s is None else 0.7 * self._batch_s + 0.3 * took_s
        if self._asks:
            self._begin(self._asks[0])

    def _on_end(self) -> None:
        # Exit closes the pipe, but so can a handler: then the process is of no more use.
        if self._process is not None:
            self._process.kill()

    async def _mind(self, process: Process) -> None:
        code = await process.wait()
        if self._channel is not None:
            self._channel.drain()
        self._lose(StopReason.DIED, f"the context {_describe_exit(code)}")

    # The watch, and the end.

    def _due_at(self, ask: Ask[Any]) -> float:
        return self._progress_at + ask.patience_s + _WATCH_SLACK_S

    def _watch_until(self, when: float) -> None:
        # One timer that is seldom moved, because most calls end long before theirs would fire.
        if self._watch is not None:
            if self._watch.when() <= when:
                return
            self._watch.cancel()
        self._watch = self._loop.call_at(when, self._on_watch)

    def _on_watch(self) -> None:
        self._watch = None
        if self._channel is not None:
            # It may be us who are late, with the answer lying in the pipe.
            self._channel.drain()
        if not self._asks:
            return
        ask = self._asks[0]
        if self._loop.time() < self._due_at(ask):
            self._watch_until(self._due_at(ask))
            return
        self._lose(StopReason.TIMEOUT, f"no job ended for {ask.patience_s:g} s")

    def _lose(self, reason: StopReason, detail: str) -> None:
        """The only way into CLOSED: kill the child, answer every ask."""
        if self._is_lost:
            return
        self._is_lost = True
        if self._process is not None:
            self._process.kill()
        has_unsent = False
        if self._channel is not None:
            has_unsent = self._channel.has_unsent
            self._channel.close()
        if self._watch is not None:
            self._watch.cancel()
        asks, self._asks = self._asks, deque()
        begun = 0 if len(asks) == 1 and has_unsent else 1
        for position, ask in enumerate(asks):
            if ask.reply.done():
                continue
            if position < begun or reason is StopReason.CLOSED:
                ask.lose(reason, detail)
            else:
                ask.reply.set_exception(NotBegun())


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    names = {int(known): known.name for known in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"
