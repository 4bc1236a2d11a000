"""The directory of an embedded mongod: who owns it, where its socket is, how long its log gets.

    DATA/mongo/lock          flock of the one Hearth that runs a mongod here
    DATA/mongo/db/           mongod's own files; its mongod.lock names the running process
    DATA/mongo/m.sock        the socket, unless that path cannot be one (see `_can_be_a_socket`)
    DATA/mongo/socket        where the socket is, for people and for the start after a crash
    DATA/mongo/mongod.log    and mongod.log.1, the older half

Files only: it starts no process and speaks to no server.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from queue_service.store.mongod_binary import EmbeddedMongoUnavailable

_SOCKET = "m.sock"
# sun_path holds 104 bytes on some systems, 108 on others, with the final NUL.
_SOCKET_PATH_MAX = 100
_LOG_TAIL_BYTES = 1 << 16


class MongodHome:
    """DATA/mongo."""

    def __init__(self, data: Path) -> None:
        # Resolved, so that one directory reached by two names is one argument of one mongod.
        self.root = data.resolve() / "mongo"
        self.db = self.root / "db"
        self.log = self.root / "mongod.log"
        self._address = self.root / "socket"

    @contextmanager
    def held(self) -> Iterator[Path]:
        """Own the directory; gives the path for the socket."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.db.mkdir(mode=0o700, exist_ok=True)
        with (self.root / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise EmbeddedMongoUnavailable(self._in_use()) from error
            directory = self._socket_directory()
            self._address.write_text(f"{directory / _SOCKET}\n")
            try:
                yield directory / _SOCKET
            finally:
                self._leave(directory)

    def pid(self) -> int | None:
        """The process that last opened the database, unless it closed it properly."""
        try:
            text = (self.db / "mongod.lock").read_text().strip()
        except FileNotFoundError:
            return None
        return int(text) if text.isdecimal() else None

    def set_log_aside(self, max_bytes: int) -> bool:
        """Rename a log that is over `max_bytes`. True: its writer must now be told to reopen."""
        if not self.log.exists() or self.log.stat().st_size <= max_bytes:
            return False
        self.log.replace(f"{self.log}.1")
        return True

    def log_tail(self) -> str:
        """The last complaints in the log, to put into an error message."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        loud = [line[:400] for line in lines if _is_loud(line)]
        return "\n".join(loud[-5:])

    def _socket_directory(self) -> Path:
        if _can_be_a_socket(self.root / _SOCKET):
            return self.root
        # Left by a Hearth that was killed: taking it again keeps the temporary directory clean.
        left = self._remembered()
        if left is not None and _can_be_a_socket(left) and _is_private(left.parent):
            return left.parent
        made = Path(tempfile.mkdtemp(prefix="hearth-")).resolve()
        if not _can_be_a_socket(made / _SOCKET):
            made.rmdir()
            raise EmbeddedMongoUnavailable(
                f"neither {self.root} nor {made.parent} can hold a socket: set TMPDIR to a short"
                " path of lower-case letters, digits and ._-"
            )
        return made

    def _leave(self, directory: Path) -> None:
        self._address.unlink(missing_ok=True)
        if directory != self.root:
            (directory / _SOCKET).unlink(missing_ok=True)
            # Cleaners of the temporary directory may have been here first.
            with suppress(FileNotFoundError):
                directory.rmdir()

    def _remembered(self) -> Path | None:
        try:
            return Path(self._address.read_text().strip())
        except FileNotFoundError:
            return None

    def _in_use(self) -> str:
        text = f"another Hearth already runs the mongod of {self.root}"
        socket = self._remembered()
        where = f" (it listens on {socket})" if socket else ""
        return f"{text}{where}: share that one by --mongo, or give this one its own --data"


def _can_be_a_socket(path: Path) -> bool:
    """Whether every party can use this path as the address of a replica set's member.

    mongod splits its addresses at commas, and the driver takes the member's name for a host name:
    it lowers its letters and looks for a port behind a colon.
    """
    return len(str(path)) <= _SOCKET_PATH_MAX and bool(re.fullmatch(r"[a-z0-9/._-]+", str(path)))


def _is_loud(line: str) -> bool:
    """An error or a fatal line; or one that is not structured, which is about the options."""
    if line.startswith("{"):
        return re.search(r'"s":"[EF]"', line) is not None
    return bool(line.strip())


def _is_private(directory: Path) -> bool:
    """A name in a shared directory may since have been taken by somebody else."""
    try:
        found = os.lstat(directory)
    except FileNotFoundError:
        return False
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return mine and not found.st_mode & 0o077
