"""The seam between us and the operating system: how a child host is started, confined and ended.

Everything about confinement is in here, so that a stronger one changes no other module. It knows
no frames and no handlers; it must be used from the event loop's thread, which has to be the main
one, because the kernel ends a child together with the *thread* that started it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runners.languages import Language

# Above every number that a child expects, so that moving one into place overwrites no other.
_SAFE_FD = 16
_ENVIRONMENT = {"LANG": "C.UTF-8", "TZ": "UTC"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one child may use."""

    memory_max_bytes: int
    file_max_bytes: int
    open_files_max: int


class Process(Protocol):
    """A started child, to be waited for in any case."""

    @property
    def pid(self) -> int:
        """Its id, and that of its process group."""

    def kill(self) -> None:
        """End it at once with all that it started; harmless when it has ended."""

    async def wait(self) -> int:
        """The exit code, negative for a signal, once nothing of it is left. May be cancelled."""


class Confinement(Protocol):
    """A way to run a host without trusting what it runs."""

    async def spawn(self, language: Language, fds: Mapping[int, int], limits: Limits) -> Process:
        """Start a host that has only the descriptors `fds` (number there -> ours) and 0 to 2.

        The limits are in force before this returns. Raises OSError, and then has started nothing.
        """

    def describe(self) -> str:
        """What is in force, in one line for people."""


class ProcessGroups:
    """The weakest confinement: own session, next to no environment, resource limits.

    It bounds accidents. A handler can still read files and open connections as our user does.
    """

    def __init__(self) -> None:
        self._setpriv = shutil.which("setpriv")

    async def spawn(self, language: Language, fds: Mapping[int, int], limits: Limits) -> Process:
        argv = language.argv
        if self._setpriv is not None:
            argv = (self._setpriv, "--pdeathsig", "KILL", "--", *argv)
        return _launch(argv, fds, limits)

    def describe(self) -> str:
        orphans = "dies with us" if self._setpriv else "may outlive us (no setpriv)"
        return f"process group, resource limits, {orphans}; no file or network isolation"


class _ChildProcess:
    """A child of ours, watched through a process descriptor: the same under every event loop."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._pidfd = os.pidfd_open(pid)
        self._loop.add_reader(self._pidfd, self._reap)

    @property
    def pid(self) -> int:
        return self._pid

    def kill(self) -> None:
        if not self._exit.done():
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)

    async def wait(self) -> int:
        return await asyncio.shield(self._exit)

    def _reap(self) -> None:
        # What the child leaves behind is ended while the zombie still keeps the group's number.
        self.kill()
        _, status = os.waitpid(self._pid, 0)
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._exit.set_result(os.waitstatus_to_exitcode(status))


def _launch(argv: tuple[str, ...], fds: Mapping[int, int], limits: Limits) -> _ChildProcess:
    pid = _start(argv, fds)
    try:
        _limit(pid, limits)
        return _ChildProcess(pid)
    except OSError:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _start(argv: tuple[str, ...], fds: Mapping[int, int]) -> int:
    """posix_spawn, because it puts descriptors in place without running Python in a fork."""
    moved = {
        there: fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, _SAFE_FD) for there, ours in fds.items()
    }
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        places = {0: nothing, 1: nothing, 2: nothing} | moved
        actions: list[tuple[int, ...]] = [
            (os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable() - places.keys()
        ]
        actions += [(os.POSIX_SPAWN_DUP2, ours, there) for there, ours in places.items()]
        return os.posix_spawn(
            argv[0],
            argv,
            _ENVIRONMENT,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ),
        )
    finally:
        for fd in (nothing, *moved.values()):
            os.close(fd)


def _inheritable() -> set[int]:
    """Our descriptors that an exec would keep: Python makes none, but a library may."""
    found: set[int] = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of this very listing is gone by now
            if os.get_inheritable(int(entry.name)):
                found.add(int(entry.name))
    return found


def _limit(pid: int, limits: Limits) -> None:
    """Limit the child from outside: it has no tenant's code yet, and fork hooks would be unsafe."""
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, limits.open_files_max),
        (resource.RLIMIT_FSIZE, limits.file_max_bytes),
        (resource.RLIMIT_DATA, limits.memory_max_bytes),
    ):
        resource.prlimit(pid, kind, (most, most))
