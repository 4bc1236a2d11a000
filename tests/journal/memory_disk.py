"""A disk in memory that logs what is done to it and can say what a power cut may leave.

Only what was synced is certain to survive: of a file the bytes before its last fdatasync, of a
directory the entries at its last sync. It models one process, so locks always succeed.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Entries = dict[Path, int]  # path -> inode; a directory is inode 0


@dataclass(frozen=True, slots=True)
class Op:
    """One logged operation. `mark` entries come from a test, the others from the journal."""

    kind: str
    path: Path = Path()
    inode: int = 0
    data: bytes = b""
    size: int = 0
    fd: int = 0
    to: Path = Path()


@dataclass(slots=True)
class Torn(Exception):
    """Raised by a fault hook: the write stops after `written` bytes and then fails."""

    written: int
    code: int


@dataclass(slots=True)
class Inode:
    data: bytes = b""
    synced: bytes = b""


@dataclass(slots=True)
class Image:
    """Files and directories, volatile and durable, as a log of operations leaves them."""

    inodes: dict[int, Inode] = field(default_factory=dict)
    now: Entries = field(default_factory=dict)
    durable: Entries = field(default_factory=dict)
    pending: list[Op] = field(default_factory=list)

    def apply(self, op: Op) -> None:
        if op.kind == "write":
            self.inodes[op.inode].data += op.data
        elif op.kind == "sync":
            self.inodes[op.inode].synced = self.inodes[op.inode].data
        elif op.kind == "truncate":
            self.inodes[op.inode].data = self.inodes[op.inode].data[: op.size]
        elif op.kind == "syncdir":
            rest = []
            for entry in self.pending:
                if entry.path.parent == op.path:
                    change(self.durable, entry)
                else:
                    rest.append(entry)
            self.pending = rest
        elif op.kind in ("mkdir", "create", "rename", "unlink"):
            if op.kind == "create":
                self.inodes[op.inode] = Inode()
            change(self.now, op)
            self.pending.append(op)

    def after_power_cut(self) -> Iterator[dict[Path, bytes | None]]:
        """Every state a power cut may leave: path -> content, None for a directory."""
        for kept in range(len(self.pending) + 1):
            entries = dict(self.durable)
            for op in self.pending[:kept]:
                change(entries, op)
            entries = {path: inode for path, inode in entries.items() if reachable(path, entries)}
            yield from self._contents(entries)

    def _contents(self, entries: Entries) -> Iterator[dict[Path, bytes | None]]:
        synced: dict[Path, bytes | None] = {
            path: self.inodes[inode].synced if inode else None for path, inode in entries.items()
        }
        yield synced
        for path, inode in entries.items():
            if inode:
                for content in torn(self.inodes[inode]):
                    yield {**synced, path: content}


def torn(inode: Inode) -> Iterator[bytes]:
    if inode.data == inode.synced:
        return
    if not inode.data.startswith(inode.synced):
        yield inode.data
        return
    tail = inode.data[len(inode.synced) :]
    for length in range(1, len(tail) + 1):
        yield inode.synced + tail[:length]
    yield inode.synced + bytes(len(tail))  # the size arrived, the data did not


def change(entries: Entries, op: Op) -> None:
    if op.kind == "mkdir":
        entries[op.path] = 0
    elif op.kind == "create":
        entries[op.path] = op.inode
    elif op.kind == "unlink":
        entries.pop(op.path, None)
    elif op.kind == "rename" and op.path in entries:
        entries[op.to] = entries.pop(op.path)


def reachable(path: Path, entries: Entries) -> bool:
    """Whether all directories above survived too; the topmost is there from the beginning."""
    above = path.parent
    return above.parent == Path() or (above in entries and reachable(above, entries))


class MemoryDisk:
    """Implements `Disk`. `before(kind, path)` may raise OSError or Torn to inject a fault."""

    def __init__(self, files: dict[Path, bytes | None] | None = None) -> None:
        self.log: list[Op] = []
        self.before: Callable[[str, Path], None] = lambda kind, path: None
        self._image = Image()
        self._mutex = threading.RLock()
        self._fds: dict[int, tuple[Path, int]] = {}
        self._count = 0
        for path, content in (files or {}).items():
            inode = 0
            if content is not None:
                inode = self._next()
                self._image.inodes[inode] = Inode(content, content)
            self._image.now[path] = self._image.durable[path] = inode

    def files(self) -> dict[Path, bytes | None]:
        return {
            path: self._image.inodes[inode].data if inode else None
            for path, inode in self._image.now.items()
        }

    def mark(self, text: str) -> None:
        with self._mutex:
            self.log.append(Op("mark", Path(text)))

    def count(self, kind: str) -> int:
        return sum(op.kind == kind for op in self.log)

    def make_dir(self, path: Path) -> None:
        if path not in self._image.now:
            self._do(Op("mkdir", path))

    def check_private(self, path: Path) -> None:
        pass

    def names(self, path: Path) -> list[str]:
        return [entry.name for entry in self._image.now if entry.parent == path]

    def is_dir(self, path: Path) -> bool:
        return self._image.now[path] == 0

    def create(self, path: Path) -> int:
        if path in self._image.now:
            raise FileExistsError(errno.EEXIST, str(path))
        inode = self._next()
        self._do(Op("create", path, inode))
        return self._fd(path, inode)

    def open_append(self, path: Path) -> int:
        return self._fd(path, self._inode(path))

    def write(self, fd: int, data: bytes) -> None:
        path, inode = self._fds[fd]
        try:
            self._do(Op("write", path, inode, data, fd=fd))
        except Torn as fault:
            with self._mutex:
                partial = Op("write", path, inode, data[: fault.written], fd=fd)
                self.log.append(partial)
                self._image.apply(partial)
            raise OSError(fault.code, "torn write") from None

    def fdatasync(self, fd: int) -> None:
        path, inode = self._fds[fd]
        self._do(Op("sync", path, inode, fd=fd))

    def truncate(self, fd: int, size: int) -> None:
        path, inode = self._fds[fd]
        self._do(Op("truncate", path, inode, size=size, fd=fd))

    def close(self, fd: int) -> None:
        del self._fds[fd]

    def size(self, path: Path) -> int:
        return len(self._image.inodes[self._inode(path)].data)

    def read(self, path: Path, offset: int, size: int) -> bytes:
        self.before("read", path)
        return self._image.inodes[self._inode(path)].data[offset : offset + size]

    def rename(self, old: Path, new: Path) -> None:
        self._do(Op("rename", old, to=new))

    def unlink(self, path: Path) -> None:
        if path in self._image.now:
            self._do(Op("unlink", path))

    def sync_dir(self, path: Path) -> None:
        self._do(Op("syncdir", path))

    def lock(self, path: Path) -> int:
        return self._fd(path, 0)

    def _do(self, op: Op) -> None:
        with self._mutex:
            try:
                self.before(op.kind, op.path)
            except OSError:
                self.log.append(Op(f"failed {op.kind}", op.path, op.inode, fd=op.fd))
                raise
            self.log.append(op)
            self._image.apply(op)

    def _inode(self, path: Path) -> int:
        if path not in self._image.now:
            raise FileNotFoundError(errno.ENOENT, str(path))
        return self._image.now[path]

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _fd(self, path: Path, inode: int) -> int:
        fd = self._next()  # never the same twice, so that a log of descriptors is unambiguous
        self._fds[fd] = (path, inode)
        return fd


class InlineExecutor(Executor):
    """Runs what it is given at once, so that a test's order of events is the same every time."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
