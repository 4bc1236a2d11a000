"""Group commit: gathers a tenant's appends and makes each group durable with one fdatasync.

An append that finds nothing being written starts a flush; what arrives while a flush runs goes into
the next one. A lone append never waits; where several came together, more are likely to follow, and
the next flush leaves them a moment to join. A flush is one hop to a thread, which encodes, writes
and syncs the whole group. Only this process's own segments are appended to: a file of an earlier
life might also be appended to by a clone of this disk, and two records would then have one
position.

The first error of a write or sync fails every append of its group, and the file is never written or
synced again, because after a failed sync the kernel may report success for data it has dropped.
What has become durable is told to the journal; reading is none of this module's business.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from queue_service.errors import JournalFull, JournalUnavailable
from queue_service.journal.descriptors import Descriptors
from queue_service.journal.disk import Disk
from queue_service.journal.health import Health
from queue_service.journal.record import Record
from queue_service.journal.segment import SegmentName, SegmentWriter
from queue_service.journal.settings import JournalSettings
from queue_service.journal.tail import Kept, TailBudget

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_FRAME_BYTES = 256  # about what a frame adds to its body; only for bounds
_WORTH_BYTES = 6 << 10  # a group of this size waits for no more

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all journals of a daemon have in common."""

    settings: JournalSettings
    disk: Disk
    pool: Executor
    descriptors: Descriptors
    tails: TailBudget
    clock: Callable[[], float]  # monotonic seconds
    new_uid: Callable[[], str]  # 32 random hex digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    """A group became durable: `segment` is now sound up to the end of `written`."""

    segment: SegmentName
    written: list[Kept]


class _Group:
    """Appends that share one write and one fdatasync."""

    __slots__ = ("begun", "finished", "futures", "records", "size")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.futures: list[asyncio.Future[None]] = []
        self.size = 0
        self.begun = False
        self.finished = asyncio.Event()

    def succeed(self) -> None:
        for future in self.futures:
            if not future.done():  # a caller that gave up has cancelled its own
                future.set_result(None)
        self.finished.set()

    def fail(self, reason: JournalUnavailable) -> None:
        for future in self.futures:
            if not future.done():
                # One exception object each: a traceback grows wherever it is raised.
                future.set_exception(type(reason)(*reason.args))
        self.finished.set()


class Appender:
    """The writing half of one tenant's journal.

    `after_ms` is the time in the latest segment name so far. `flushed` is called on the event loop
    after each group that became durable, before its appends return; with None after a failure,
    when no segment is open any more.
    """

    def __init__(
        self,
        directory: Path,
        shared: Shared,
        after_ms: int,
        flushed: Callable[[Flushed | None], None],
    ) -> None:
        self._directory = directory
        self._shared = shared
        self._settings = shared.settings
        self._flushed = flushed
        self._groups: deque[_Group] = deque()  # in the order of writing
        self._queued_bytes = 0
        self._flusher: asyncio.Task[None] | None = None
        self._closed = False
        self._flushed_at = 0.0
        self._crowded = False
        self._health = Health(
            window_s=self._settings.failure_window_s, refusal_s=self._settings.refusal_s
        )
        # Touched only by the flush that runs, in its thread.
        self._writer: SegmentWriter | None = None
        self._last_ms = after_ms
        self._made_directory = False

    @property
    def healthy(self) -> bool:
        return self._health.healthy(self._shared.clock())

    async def append(self, record: Record) -> None:
        """Return once the record would survive a power cut, or raise JournalUnavailable.

        A caller that is cancelled does not know: its record may have been written.
        """
        size = len(record.body) + _FRAME_BYTES
        self._admit(size)
        group = self._open_group()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        group.records.append(record)
        group.futures.append(future)
        group.size += size
        self._queued_bytes += size
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush())
        await future

    async def sync(self) -> None:
        """Return when the appends begun so far have ended, well or not; later ones do not count."""
        if self._groups:
            await self._groups[-1].finished.wait()

    async def close(self) -> None:
        """Take no more appends, and end those begun."""
        self._closed = True
        await self.sync()

    def _admit(self, size: int) -> None:
        if self._closed:
            raise JournalUnavailable("the journal is closing")
        if self._queued_bytes and self._queued_bytes + size > self._settings.queue_bytes:
            raise JournalUnavailable("too many bytes are waiting for the disk")
        if not self._health.admits(self._shared.clock()):
            raise JournalUnavailable("the disk has failed repeatedly")

    def _open_group(self) -> _Group:
        """The group that the next append joins: the last one, unless it is full or under way."""
        if self._groups:
            last = self._groups[-1]
            if not last.begun and last.size < self._settings.group_bytes:
                return last
        self._groups.append(_Group())
        return self._groups[-1]

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._groups:
            if self._crowded and self._groups[0].size < _WORTH_BYTES:
                await asyncio.sleep(self._flushed_at + self._settings.group_wait_s - loop.time())
            group = self._groups[0]
            group.begun = True
            self._flushed_at, self._crowded = loop.time(), len(group.records) > 1
            try:
                flushed = await loop.run_in_executor(self._shared.pool, self._write, group.records)
            except Exception as error:
                # The boundary of all writing: whatever went wrong, nobody may be left waiting.
                self._fail(error)
            else:
                self._health.succeeded()
                self._forget(group)
                self._flushed(flushed)
                group.succeed()
        self._flusher = None

    def _fail(self, error: Exception) -> None:
        _log.error("appending in %s failed: %s", self._directory, error, exc_info=error)
        self._health.failed(self._shared.clock())
        reason = _refusal(error)
        hit = [self._groups[0]] if self.healthy else list(self._groups)
        for group in hit:
            self._forget(group)
            group.fail(reason)
        self._flushed(None)

    def _forget(self, group: _Group) -> None:
        self._groups.popleft()
        self._queued_bytes -= group.size

    def _write(self, records: list[Record]) -> Flushed:
        """In a thread: make the records durable, in a new segment where one is due."""
        writer = self._writer
        if writer is not None and writer.end > self._settings.segment_bytes:
            writer.seal()
            writer = self._writer = None
        try:
            if writer is None:
                writer = self._writer = self._create(records[0].date)
            written = writer.append(records)
        except BaseException:
            self._writer = None
            self._made_directory = False  # it may be what is missing
            raise
        return Flushed(segment=writer.name, written=written)

    def _create(self, date: datetime) -> SegmentWriter:
        disk = self._shared.disk
        if not self._made_directory:
            disk.make_dir(self._directory)
            disk.sync_dir(self._directory.parent)
            self._made_directory = True
        self._last_ms = max((date - _EPOCH) // _MS, self._last_ms + 1)
        name = SegmentName(self._last_ms, self._shared.new_uid())
        return SegmentWriter.create(disk, self._shared.descriptors, self._directory, name)


def _refusal(error: Exception) -> JournalUnavailable:
    if isinstance(error, OSError) and error.errno in _FULL:
        return JournalFull("the disk is full")
    return JournalUnavailable("the journal could not be written")
