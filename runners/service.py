"""A server program that says on its first line when it can be used: start it, hear it, stop it.

It is neither restarted nor confined: `supervise` keeps helpers alive, `sandbox` starts contexts.
"""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self


class ServiceFailed(Exception):
    """The program ended, or stayed silent, instead of getting ready."""


class Service:
    """A running program; whoever starts it must `stop` it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, argv: Sequence[str], log: Path) -> Self:
        """Start `argv` in a session of its own, so that Ctrl-C at a terminal reaches us alone."""
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=DEVNULL, stdout=PIPE, stderr=errors, start_new_session=True
            )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def first_line(self, timeout_s: float) -> str:
        """What it announced itself with."""
        assert self._process.stdout is not None  # noqa: S101 - `start` asked for a pipe
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise ServiceFailed(f"not ready after {timeout_s:.0f} s") from None
        if not line:
            raise ServiceFailed(f"ended with code {await self._process.wait()} before it was ready")
        return line.decode().strip()

    async def stop(self, number: signal.Signals = signal.SIGTERM, grace_s: float = 40.0) -> int:
        """Send a signal and wait for the end; after the grace it is killed. The exit code."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
        try:
            async with asyncio.timeout(grace_s):
                return await self._process.wait()
        except TimeoutError:
            self._process.kill()
            return await self._process.wait()
