"""One journal file: its name, and appending to it.

Names are `{20-digit ms}-{32 hex digits of uid}.log`; they sort in the order of creation because
each name's time is later than the one before, whatever the clock says. The uid is the salt of the
file's checksums (see `record`). Reading is in `scan`; which file is appended to when, and what a
failure means for the tenant, is decided in `appender`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from queue_service.journal.descriptors import Descriptors
from queue_service.journal.disk import Disk
from queue_service.journal.record import Record, encode
from queue_service.journal.tail import Kept

_NAME = re.compile(r"(?P<ms>[0-9]{20})-(?P<uid>[0-9a-f]{32})\.log")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """What a segment's file name says. Ordered by creation."""

    ms: int
    uid: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The name in `text`, or None when it is not one of a segment."""
        found = _NAME.fullmatch(text)
        return None if found is None else cls(int(found["ms"]), found["uid"])

    @property
    def salt(self) -> bytes:
        return bytes.fromhex(self.uid)

    def __str__(self) -> str:
        return f"{self.ms:020d}-{self.uid}.log"


class SegmentWriter:
    """Appends to one new file. One caller at a time; after an OSError it must not be used again.

    `end` is the durable end: everything before it was synced, and nothing behind it may be
    acknowledged or read.
    """

    def __init__(self, disk: Disk, descriptors: Descriptors, path: Path, name: SegmentName) -> None:
        self._disk = disk
        self._descriptors = descriptors
        self._path = path
        self._seq = 0
        self.name = name
        self.end = 0

    @classmethod
    def create(
        cls, disk: Disk, descriptors: Descriptors, directory: Path, name: SegmentName
    ) -> Self:
        """Make the file and its directory entry durable, so that a first ack can rely on them."""
        writer = cls(disk, descriptors, directory / str(name), name)
        with descriptors.borrow(writer._path, create=True) as fd:
            try:
                disk.sync_dir(directory)
            except OSError:
                writer._cut_back(fd)
                raise
        return writer

    def append(self, records: Iterable[Record]) -> list[Kept]:
        """Write the records with one write and one fdatasync; they are durable on return."""
        salt, end = self.name.salt, self.end
        pieces: list[bytes] = []
        written: list[Kept] = []
        for seq, record in enumerate(records, self._seq):
            frame = encode(record, seq, salt)
            pieces += frame
            start, end = end, end + sum(map(len, frame))
            written.append(Kept(record, start, end, seq))
        data = b"".join(pieces)
        with self._descriptors.borrow(self._path) as fd:
            try:
                self._disk.write(fd, data)
                self._disk.fdatasync(fd)
            except OSError:
                self._cut_back(fd)
                raise
        self._seq += len(written)
        self.end = end
        return written

    def seal(self) -> None:
        """Give the descriptor back; nothing will be appended any more."""
        self._descriptors.drop(self._path)

    def _cut_back(self, fd: int) -> None:
        # What was refused should not turn up after a restart. Not synced: after a failed sync the
        # kernel may call pages clean that never reached the disk, so this descriptor's next sync
        # would mean nothing. The next segment's own syncs carry the new size along.
        try:
            self._disk.truncate(fd, self.end)
            if self.end == 0:
                self._disk.unlink(self._path)
        except OSError:
            _log.warning("cutting %s back to %d failed", self._path, self.end, exc_info=True)
