"""The few file operations a journal needs, and the only place that asks the kernel for them.

`Disk` is a protocol so that tests can run the same journal on a disk that remembers, fails and
loses what a real one may lose. Nothing here knows what the files contain. Every method may raise
OSError, and none retries: what an error means is for the caller to decide.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import Protocol

_COMMON = os.O_CLOEXEC | os.O_NOFOLLOW
_FILE_MODE = 0o600
_DIR_MODE = 0o700


class Disk(Protocol):
    """File operations; descriptors are plain integers and belong to whoever opened them."""

    def make_dir(self, path: Path) -> None:
        """Create a private directory unless it exists; not durable before `sync_dir(parent)`."""

    def check_private(self, path: Path) -> None:
        """Raise PermissionError unless `path` is a real directory, ours and closed to others."""

    def names(self, path: Path) -> list[str]:
        """The names in a directory, in no order."""

    def is_dir(self, path: Path) -> bool:
        """Whether `path` is a directory itself, not a link to one."""

    def create(self, path: Path) -> int:
        """Open a new private file for appending; it must not exist."""

    def open_append(self, path: Path) -> int:
        """Open an existing file for appending."""

    def write(self, fd: int, data: bytes) -> None:
        """Append all of `data`, however many calls that takes."""

    def fdatasync(self, fd: int) -> None:
        """Return when everything written through `fd` would survive a power cut."""

    def truncate(self, fd: int, size: int) -> None: ...

    def close(self, fd: int) -> None: ...

    def size(self, path: Path) -> int: ...

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; less only where the file ends."""

    def rename(self, old: Path, new: Path) -> None: ...

    def unlink(self, path: Path) -> None:
        """Remove a file; it is well if there is none."""

    def sync_dir(self, path: Path) -> None:
        """Make creations, renames and removals in a directory durable."""

    def lock(self, path: Path) -> int:
        """Lock a file until the descriptor is closed; BlockingIOError if another holds it."""


class RealDisk:
    """The kernel's files."""

    def make_dir(self, path: Path) -> None:
        path.mkdir(mode=_DIR_MODE, exist_ok=True)

    def check_private(self, path: Path) -> None:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise PermissionError(f"{path} is not a directory")
        if found.st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to uid {found.st_uid}, not to {os.geteuid()}")
        mode = stat.S_IMODE(found.st_mode)
        if mode != _DIR_MODE:
            raise PermissionError(f"{path} has mode {mode:04o}, not {_DIR_MODE:04o}")

    def names(self, path: Path) -> list[str]:
        return [entry.name for entry in path.iterdir()]

    def is_dir(self, path: Path) -> bool:
        return stat.S_ISDIR(path.lstat().st_mode)

    def create(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | _COMMON
        return os.open(path, flags, _FILE_MODE)

    def open_append(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_APPEND | _COMMON)

    def write(self, fd: int, data: bytes) -> None:
        written = os.write(fd, data)
        while written < len(data):
            written += os.write(fd, memoryview(data)[written:])

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, path: Path) -> int:
        return path.lstat().st_size

    def read(self, path: Path, offset: int, size: int) -> bytes:
        fd = os.open(path, os.O_RDONLY | _COMMON)
        try:
            pieces = []
            while size > 0 and (piece := os.pread(fd, size, offset)):
                pieces.append(piece)
                offset += len(piece)
                size -= len(piece)
        finally:
            os.close(fd)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _COMMON)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: Path) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | _COMMON, _FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd


def replace_file(disk: Disk, path: Path, data: bytes) -> None:
    """Put `data` at `path` durably, so that a crash leaves either the old file or the new one."""
    temporary = path.with_name(f"{path.name}.tmp")
    disk.unlink(temporary)
    fd = disk.create(temporary)
    try:
        disk.write(fd, data)
        disk.fdatasync(fd)
    finally:
        disk.close(fd)
    disk.rename(temporary, path)
    disk.sync_dir(path.parent)
