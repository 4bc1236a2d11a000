"""Several runners as one: each call goes to the runner of its language. Runs nothing itself."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

from handlers.definition import Definition, Handler
from runners.base import Call, Outcome, Runner, SourceError, StopReason, nothing_done


class KeptRunner(Runner, Protocol):
    """A runner that keeps things warm, and says what confines it."""

    def reap(self, now: float) -> int:
        """Close what nobody needs; how many those were."""

    def describe(self) -> str:
        """What confines it, in one line for people."""


class Runners:
    """A `runners.base.Runner` of all the languages of others; no two may share one."""

    def __init__(self, runners: Sequence[KeptRunner]) -> None:
        self._runners = tuple(runners)
        self._by_lang: dict[str, KeptRunner] = {}
        for runner in runners:
            for lang in runner.langs:
                if lang in self._by_lang:
                    raise ValueError(f"two runners take lang {lang!r}")
                self._by_lang[lang] = runner

    @property
    def langs(self) -> Collection[str]:
        return self._by_lang.keys()

    async def run(self, call: Call) -> Outcome:
        lang = call.handler.definition.lang
        runner = self._by_lang.get(lang)
        if runner is None:
            return nothing_done(StopReason.UNLOADABLE, f"unknown lang {lang!r}")
        return await runner.run(call)

    async def check(self, definition: Definition) -> SourceError | None:
        runner = self._by_lang.get(definition.lang)
        if runner is None:
            return SourceError(message=f"unknown lang {definition.lang!r}", line=0)
        return await runner.check(definition)

    def room(self, handler: Handler) -> int:
        """Also for a lang nobody takes: its batches must be let in to be refused."""
        runner = self._by_lang.get(handler.definition.lang)
        return 1 if runner is None else runner.room(handler)

    def warm(self) -> Collection[tuple[str, str, str]]:
        return {key for runner in self._runners for key in runner.warm()}

    def reap(self, now: float) -> int:
        return sum(runner.reap(now) for runner in self._runners)

    async def close(self) -> None:
        """Close them all, each even if another fails to."""
        closed = await asyncio.gather(
            *(runner.close() for runner in self._runners), return_exceptions=True
        )
        for error in closed:
            if isinstance(error, BaseException):
                raise error

    def describe(self) -> str:
        return "; ".join(runner.describe() for runner in self._runners)

    def __repr__(self) -> str:
        return f"<Runners {', '.join(sorted(self._by_lang))}>"
