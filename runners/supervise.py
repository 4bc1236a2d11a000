"""Keep one long-lived helper process alive: start, watch, restart after a crash, stop cleanly.

Knows nothing of what the helper does or when it is ready; whoever starts it asks it that. Contexts
for tenants' code are no helpers: they are short-lived, confined, and never restarted here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class HelperExited(Exception):
    """The helper ended while something was being done that needs it."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} {describe_exit(code)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Helper:
    """A program and how it is kept alive.

    What it prints is appended to `output`. The pause before a restart doubles from
    `backoff_first_s` up to `backoff_max_s`; a run of `settled_s` starts the doubling afresh.
    """

    name: str
    argv: tuple[str, ...]
    output: Path
    grace_s: float = 20.0
    backoff_first_s: float = 0.1
    backoff_max_s: float = 5.0
    settled_s: float = 30.0

    def pause_s(self, crashes: int) -> float:
        """How long to wait before the restart that follows the `crashes`-th crash in a row."""
        # The exponent is capped because 2.0 ** 1024 overflows, and a helper may crash that often.
        return min(self.backoff_max_s, self.backoff_first_s * 2.0 ** min(crashes - 1, 32))


class Supervisor:
    """Runs a Helper for as long as the `async with` lasts.

    There is no limit on restarts: what a helper is needed for stays unavailable while it is away,
    and a full disk or a lack of memory may pass.
    """

    def __init__(self, helper: Helper) -> None:
        self._helper = helper
        self._process: Process | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The running process, None between a crash and the restart."""
        if self._process is None or self._process.returncode is not None:
            return None
        return self._process.pid

    async def __aenter__(self) -> Self:
        """Start the helper; OSError when that is not possible at all."""
        self._process = await _spawn(self._helper)
        self._watch = asyncio.create_task(self._keep_alive(), name=f"watch {self._helper.name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop watching first, so that the exit that follows is not taken for a crash."""
        watch = self._watch
        if watch is None:
            return
        watch.cancel()
        await asyncio.wait({watch})
        if self._process is not None:
            await _end(self._process, self._helper)
        if not watch.cancelled():
            watch.result()

    async def while_alive(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Await `work`, but raise HelperExited as soon as the present process ends."""
        process = self._process
        if process is None:
            work.close()
            raise HelperExited(self._helper.name, 0)
        working = asyncio.create_task(work)
        exiting = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({working, exiting}, return_when=asyncio.FIRST_COMPLETED)
            # Asked first: work that failed because the helper is gone would hide the cause.
            if exiting.done():
                raise HelperExited(self._helper.name, exiting.result())
            return working.result()
        finally:
            working.cancel()
            exiting.cancel()
            await asyncio.gather(working, exiting, return_exceptions=True)

    async def _keep_alive(self) -> None:
        clock = asyncio.get_running_loop().time
        crashes = 0
        while True:
            started = clock()
            exited = "could not be started"
            if self._process is not None:
                exited = describe_exit(await self._process.wait())
            settled = clock() - started >= self._helper.settled_s
            crashes = 1 if settled else crashes + 1
            pause_s = self._helper.pause_s(crashes)
            _log.error("%s %s; next start in %.1f s", self._helper.name, exited, pause_s)
            await asyncio.sleep(pause_s)
            await self._restart()

    async def _restart(self) -> None:
        self._process = None
        try:
            self._process = await _spawn(self._helper)
        except OSError as error:
            _log.error("%s: %s", self._helper.name, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A short run: its exit code (negative: the signal) and all it printed."""

    code: int
    output: str


async def run_once(argv: Sequence[str], timeout_s: float) -> Finished:
    """Run a program that is expected to end at once. OSError: not startable. TimeoutError."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate()
            return Finished(code=await process.wait(), output=output.decode(errors="replace"))
    finally:
        if process.returncode is None:
            await _kill(process)


async def end_orphan(pid: int, argument: str, grace_s: float) -> bool:
    """Stop a helper that outlived the supervisor which started it.

    `argument` is one that only this helper was started with: a pid out of a file may by now belong
    to an innocent process. False when it does, or when no such process exists.
    """
    if argument not in _arguments(pid):
        return False
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(process, gone.set)
    try:
        # Asked again: only from the open on does the descriptor keep standing for one process.
        if argument not in _arguments(pid):
            return False
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, number)
            with suppress(TimeoutError):
                await asyncio.wait_for(gone.wait(), grace_s)
                return True
        raise TimeoutError(f"process {pid} does not end")
    finally:
        loop.remove_reader(process)
        os.close(process)


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exited with code {code}"
    return f"was killed by {signal.Signals(-code).name}"


def _arguments(pid: int) -> list[str]:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return os.fsdecode(line).split("\0")


async def _spawn(helper: Helper) -> Process:
    argv = helper.argv
    if setpriv := shutil.which("setpriv"):
        # The kernel then sends SIGTERM when we die, even by kill -9. It watches the thread that
        # starts the process, which is the event loop's and lives as long as the supervisor.
        argv = (setpriv, "--pdeathsig", "TERM", "--", *argv)
    with helper.output.open("ab") as output:
        # A session of its own, so that Ctrl-C at a terminal reaches us alone and we stop in order.
        return await asyncio.create_subprocess_exec(
            *argv, stdin=DEVNULL, stdout=output, stderr=STDOUT, start_new_session=True
        )


async def _end(process: Process, helper: Helper) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(helper.grace_s):
            await process.wait()
    except TimeoutError:
        _log.warning("%s ignored SIGTERM for %.1f s", helper.name, helper.grace_s)
    finally:
        # Also when the wait is cancelled: no helper may outlive its supervisor.
        if process.returncode is None:
            await _kill(process)


async def _kill(process: Process) -> None:
    # The whole session, because a helper may have children of its own.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
