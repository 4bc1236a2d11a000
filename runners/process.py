"""The runner for languages that run as warm child processes.

Puts together the pool, the table of languages and the confinement. Which language a host speaks
makes no difference here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from handlers.definition import Definition, Handler
from runners.asks import ContextLost
from runners.base import Call, Outcome, SourceError, StopReason, nothing_done
from runners.context import Context
from runners.languages import LANGUAGES, Language
from runners.pool import Pool
from runners.sandbox import Confinement, ProcessGroups
from runners.settings import RunnerSettings

__all__ = ["ProcessRunner", "RunnerSettings"]

_CHECKS_AT_ONCE = 2


class ProcessRunner:
    """A `runners.base.Runner`; to be made, used and closed on one event loop."""

    def __init__(
        self,
        settings: RunnerSettings,
        *,
        confinement: Confinement | None = None,
        languages: Mapping[str, Language] = LANGUAGES,
    ) -> None:
        self._settings = settings
        self._confinement = confinement or ProcessGroups()
        self._languages = languages
        self._clock = asyncio.get_running_loop().time
        self._pool = Pool(settings, self._create)
        self._checks = asyncio.Semaphore(_CHECKS_AT_ONCE)

    @property
    def langs(self) -> Collection[str]:
        return self._languages.keys()

    async def run(self, call: Call) -> Outcome:
        lang = call.handler.definition.lang
        if lang not in self._languages:
            return nothing_done(StopReason.UNLOADABLE, f"unknown lang {lang!r}")
        return await self._pool.run(call)

    async def check(self, definition: Definition) -> SourceError | None:
        """As in the protocol; OSError when no process can be started to find out.

        Each check has a child of its own: compiling hostile source may do anything to it.
        """
        if definition.lang not in self._languages:
            return SourceError(message=f"unknown lang {definition.lang!r}", line=0)
        async with self._checks:
            context = self._context(("", definition.lang, "check"), self._clock())
            try:
                return await context.check(definition)
            except ContextLost as lost:
                return SourceError(message=f"cannot be compiled: {lost}", line=0)
            finally:
                context.close("checked")
                await asyncio.shield(context.gone())

    def room(self, handler: Handler) -> int:
        return self._pool.room(handler)

    def warm(self) -> Collection[tuple[str, str, str]]:
        return self._pool.warm()

    def reap(self, now: float) -> int:
        """A chore: close contexts that nobody needs; `now` is the event loop's time."""
        return self._pool.reap(now)

    async def close(self) -> None:
        await self._pool.close()

    def describe(self) -> str:
        """What confines the contexts, in one line for people."""
        return self._confinement.describe()

    def __repr__(self) -> str:
        return f"<ProcessRunner {self._pool!r} {self._confinement.describe()}>"

    def _create(self, handler: Handler, now: float) -> Context:
        return self._context(handler.key, now)

    def _context(self, key: tuple[str, str, str], now: float) -> Context:
        return Context(
            key=key,
            language=self._languages[key[1]],
            confinement=self._confinement,
            settings=self._settings,
            now=now,
        )
