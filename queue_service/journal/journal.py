"""One tenant's journal: append at the end, reserve and read from the front, commit, forget.

Writing is the `Appender`'s; which ranges are taken is kept in `Claims`, one per segment. This
module joins the two, keeps the read point on disk, unlinks what has been committed and sets damaged
bytes aside. It does not know what is done with the records. All methods belong to one event loop;
only the functions that say so run in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from queue_service.errors import JournalUnavailable
from queue_service.journal import cursor as cursors
from queue_service.journal.appender import Appender, Flushed, Shared
from queue_service.journal.claims import Claims, Reservation
from queue_service.journal.cursor import Cursor
from queue_service.journal.disk import replace_file
from queue_service.journal.record import Record
from queue_service.journal.recovery import Recovered
from queue_service.journal.scan import Damage, Scan, Scanner
from queue_service.journal.segment import SegmentName
from queue_service.journal.tail import Tail, TailBudget

_log = logging.getLogger(__name__)


class ReservationLapsed(LookupError):
    """The reservation ran out of time, was cancelled or skipped; others may have its records."""


class _Segment:
    """What the event loop knows of a file: its durable range, and whether it may still grow."""

    __slots__ = ("claims", "name", "sealed", "tail")

    def __init__(
        self, name: SegmentName, tails: TailBudget, *, point: int, end: int, inherited: bool
    ) -> None:
        self.name = name
        self.tail = Tail(tails)
        self.claims = Claims(segment_uid=name.uid, point=point, end=end, inherited=inherited)
        self.sealed = inherited


class Journal:
    """See the module. `changed` is called after anything that may alter what can be read;
    `damaged` for everything found spoilt, at least once each."""

    def __init__(
        self,
        tenant: str,
        directory: Path,
        shared: Shared,
        recovered: Recovered,
        changed: Callable[[Journal], None],
        damaged: Callable[[str, str, Damage], None],
    ) -> None:
        self.tenant = tenant
        self._directory = directory
        self._shared = shared
        self._changed = changed
        self._damaged = damaged
        self._segments = deque(
            _Segment(left.name, shared.tails, point=left.point, end=left.end, inherited=True)
            for left in recovered.leftovers
        )
        self._spent = list(recovered.spent)
        self._cursor = recovered.cursor
        self._cursor_moved = bool(recovered.spent) and recovered.cursor is not None
        self._cursor_turn = asyncio.Lock()
        self._cursor_file = threading.Lock()
        self._appender = Appender(directory, shared, recovered.last_ms, self._flushed)
        self._report(cursors.FILE_NAME, recovered.damage)

    @property
    def healthy(self) -> bool:
        """Whether an append would be tried now."""
        return self._appender.healthy

    @property
    def unread_bytes(self) -> int:
        """Durable bytes that have not been committed."""
        return sum(segment.claims.unread_bytes for segment in self._segments)

    @property
    def readable(self) -> bool:
        """Whether `reserve` would find something, reservations that may have lapsed aside."""
        return self._front() is not None

    @property
    def durable_end(self) -> Cursor | None:
        """Behind the last durable record; None when everything has been committed."""
        last = self._segments[-1] if self._segments else None
        return Cursor(last.name, last.claims.end) if last else None

    def is_committed(self, end: Cursor | None) -> bool:
        """Whether the read point has reached what `durable_end` once was."""
        if end is None or not self._segments:
            return True
        front = self._segments[0]
        return (front.name, front.claims.point) >= (end.segment, end.offset)

    def read_point(self, segment_uid: str) -> int | None:
        """How far a segment has been committed; None once all of it is and it is forgotten."""
        segment = self._segment(segment_uid)
        return segment.claims.point if segment else None

    @property
    def deadline(self) -> float | None:
        """When the next reservation lapses; None when there is none."""
        found = (segment.claims.deadline for segment in self._segments)
        return min((at for at in found if at is not None), default=None)

    @property
    def cursor_moved(self) -> bool:
        """Whether `sync_cursor` has something to do."""
        return self._cursor_moved

    async def append(self, record: Record) -> None:
        """Return once the record would survive a power cut.

        Raises JournalFull or JournalUnavailable, and then the record will not be read either,
        unless the disk failed so badly that it could not be cut off again. A caller that is
        cancelled does not know.
        """
        await self._appender.append(record)

    async def sync(self) -> None:
        """Return when the appends begun so far have ended; later ones are not waited for."""
        await self._appender.sync()

    def reserve(
        self, max_records: int, max_bytes: int, timeout_s: float, now: float
    ) -> Reservation | None:
        """Take the next unread durable records, all of one segment, away from other readers.

        They come back on `cancel`, or once `now` of a later call is past the timeout. Where the
        reservation ends is known when it has been read; until then nobody else gets one of this
        tenant, so read at once.
        """
        self.lapse(now)
        front = self._front()
        if front is None:
            return None
        claim = front.claims.reserve(
            max_records=max_records, max_bytes=max_bytes, deadline=now + timeout_s
        )
        self._changed(self)
        return claim

    async def read(self, reservation: Reservation) -> list[Record]:
        """The reserved records: at least one however large, or none where all was damaged.

        Fixes `reservation.end`, and may be repeated. Raises ReservationLapsed, or
        JournalUnavailable when the disk does not let it read.
        """
        segment = self._holder(reservation)
        kept = segment.tail.read(
            reservation.start, reservation.end, reservation.max_records, reservation.max_bytes
        )
        if kept:
            segment.claims.decide(reservation, kept[-1].end, kept[-1].seq + 1)
            self._changed(self)
            return [found.record for found in kept]
        seq = segment.claims.expected_seq(reservation)
        loop = asyncio.get_running_loop()
        try:
            scan = await loop.run_in_executor(
                self._shared.pool, self._scan, segment.name, reservation, seq
            )
        except OSError as error:
            self._holder(reservation)
            raise JournalUnavailable("the journal could not be read") from error
        self._holder(reservation)
        segment.claims.decide(reservation, scan.end, scan.seq)
        self._report(str(segment.name), scan.damage)
        self._changed(self)
        return scan.records

    async def commit(self, reservation: Reservation) -> bool:
        """Move the read point past what was read and is now stored elsewhere.

        False, and nothing happens, when the reservation is not held any more: somebody else will
        commit those records. The read point reaches the disk a little later; see `sync_cursor`.
        """
        segment = self._segment(reservation.segment_uid)
        if segment is None or not segment.claims.commit(reservation):
            return False
        self._advance()
        return True

    def cancel(self, reservation: Reservation) -> None:
        """Make the reserved records readable again; harmless if it is not held any more."""
        segment = self._segment(reservation.segment_uid)
        if segment is not None and segment.claims.cancel(reservation):
            self._changed(self)

    def skip_to(self, segment_uid: str, offset: int) -> None:
        """Count that segment as committed up to `offset`, whoever holds a part of it."""
        segment = self._segment(segment_uid)
        if segment is not None:
            segment.claims.skip_to(offset)
            self._advance()

    def lapse(self, now: float) -> None:
        """Make readable again what was reserved and has run out of time."""
        deadline = self.deadline
        if deadline is None or deadline > now:
            return
        for segment in self._segments:
            segment.claims.lapse(now)
        self._changed(self)

    async def sync_cursor(self) -> None:
        """Write the read point down, then unlink the segments before it.

        A crash in between only leaves files that the next start removes.
        """
        async with self._cursor_turn:
            if not self._cursor_moved or self._cursor is None:
                return
            cursor, spent = self._cursor, self._spent
            self._cursor_moved, self._spent = False, []
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(self._shared.pool, self._save, cursor, spent)
            except BaseException as error:
                self._cursor_moved, self._spent = True, spent + self._spent
                if isinstance(error, OSError):
                    raise JournalUnavailable("the read point could not be written") from error
                raise

    async def close(self) -> None:
        """End the appends begun and write the read point down."""
        await self._appender.close()
        await self.sync_cursor()

    def __repr__(self) -> str:
        return (
            f"<Journal {self.tenant} segments={len(self._segments)} unread={self.unread_bytes}"
            f" healthy={self.healthy}>"
        )

    def _flushed(self, flushed: Flushed | None) -> None:
        last = self._segments[-1] if self._segments else None
        if last is not None and (flushed is None or last.name != flushed.segment):
            last.sealed = True
        if flushed is not None:
            if last is None or last.sealed:
                tails = self._shared.tails
                last = _Segment(flushed.segment, tails, point=0, end=0, inherited=False)
                self._segments.append(last)
            last.tail.add(flushed.written)
            last.claims.end = flushed.written[-1].end
        self._advance()

    def _advance(self) -> None:
        """Follow the read point, and let go of segments that are read and cannot grow."""
        while self._segments:
            front = self._segments[0]
            here = Cursor(front.name, front.claims.point)
            front.tail.forget(here.offset)
            # The end of one segment says the same as the beginning of the next.
            if here.offset and here != self._cursor:
                self._cursor, self._cursor_moved = here, True
            if not front.sealed or front.claims.unread_bytes:
                break
            self._spent.append(front.name)
            self._cursor_moved = True
            self._segments.popleft()
        self._changed(self)

    def _front(self) -> _Segment | None:
        """The first segment with a free range, unless a reservation before it is undecided."""
        for segment in self._segments:
            if segment.claims.undecided:
                return None
            if segment.claims.free is not None:
                return segment
        return None

    def _segment(self, uid: str) -> _Segment | None:
        return next((segment for segment in self._segments if segment.name.uid == uid), None)

    def _holder(self, reservation: Reservation) -> _Segment:
        segment = self._segment(reservation.segment_uid)
        if segment is None or not reservation.held:
            raise ReservationLapsed(repr(reservation))
        return segment

    def _report(self, file: str, damage: Sequence[Damage]) -> None:
        for found in damage:
            _log.warning(
                "journal of %s: %s: %s of %d bytes at %d (%s)",
                *(self.tenant, file, found.kind, found.length, found.offset, found.detail),
            )
            self._damaged(self.tenant, file, found)

    def _scan(self, name: SegmentName, reservation: Reservation, seq: int | None) -> Scan:
        """In a thread: read, and set aside what is damaged before anyone can commit past it."""
        path = self._directory / str(name)

        def read(offset: int, size: int) -> bytes:
            return self._shared.disk.read(path, offset, size)

        scanner = Scanner(read, name.salt, reservation.start, reservation.end, seq)
        scan = scanner.scan(reservation.max_records, reservation.max_bytes)
        for damage in scan.damage:
            spoilt = read(damage.offset, damage.length) if damage.length else b""
            if spoilt:
                aside = path.with_name(f"{name}.bad-{damage.offset}")
                replace_file(self._shared.disk, aside, spoilt)
        return scan

    def _save(self, cursor: Cursor, spent: list[SegmentName]) -> None:
        """In a thread: the cursor first, for a segment may only go once that is durable."""
        disk = self._shared.disk
        # A caller that was cancelled has left its write running; two must not share a file.
        with self._cursor_file:
            replace_file(disk, self._directory / cursors.FILE_NAME, cursor.encode())
            for name in spent:
                disk.unlink(self._directory / str(name))
            if spent:
                disk.sync_dir(self._directory)
