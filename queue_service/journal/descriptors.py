"""A bounded set of files open for appending, shared by all journals of a daemon.

Thousands of tenants must not mean thousands of open files: the one unused for longest is closed
when another is needed. Used from the journal's threads, hence the lock. It neither writes nor
syncs, and closing loses nothing: a descriptor is idle only after its last write was synced.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from queue_service.journal.disk import Disk

_log = logging.getLogger(__name__)


class Descriptors:
    """At most `limit` open files, as long as no more than `limit` threads borrow at a time."""

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = limit
        self._lock = threading.Lock()
        self._idle: OrderedDict[Path, int] = OrderedDict()
        self._busy: dict[Path, int] = {}

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    @contextmanager
    def borrow(self, path: Path, *, create: bool = False) -> Iterator[int]:
        """The descriptor of `path`, for this thread alone until the block ends.

        A block that raises has its descriptor closed: it must never be synced again.
        """
        fd = self._take(path, create=create)
        try:
            yield fd
        except BaseException:
            with self._lock:
                del self._busy[path]
            self._close(path, fd)
            raise
        with self._lock:
            self._idle[path] = self._busy.pop(path)

    def drop(self, path: Path) -> None:
        """Close `path` if it is open; nobody may be borrowing it."""
        with self._lock:
            fd = self._idle.pop(path, None)
        if fd is not None:
            self._close(path, fd)

    def close(self) -> None:
        while self._idle:
            self._close(*self._idle.popitem())

    def _take(self, path: Path, *, create: bool) -> int:
        with self._lock:
            fd = self._idle.pop(path, None)
            if fd is None:
                while self._idle and len(self) >= self._limit:
                    self._close(*self._idle.popitem(last=False))
                fd = self._disk.create(path) if create else self._disk.open_append(path)
            self._busy[path] = fd
        return fd

    def _close(self, path: Path, fd: int) -> None:
        try:
            self._disk.close(fd)
        except OSError:
            # Everything acknowledged was synced before, so there is nobody to tell but operators.
            _log.warning("closing %s failed", path, exc_info=True)
