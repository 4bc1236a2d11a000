"""The read point of a tenant's journal as it stands on disk.

    #:Cursor segment=00000001763452800123-….log,offset=12345,crc=xxxxxxxx\n

Everything before it is stored elsewhere. It may be older than the truth (then records are read
again, and the store knows them by the same positions) but never newer. No I/O here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from queue_service.journal.record import checksum
from queue_service.journal.segment import SegmentName

FILE_NAME = "cursor"
SIZE_MAX = 256

_CURSOR = re.compile(
    rb"(?P<text>#:Cursor segment=(?P<segment>[0-9a-f.\-log]+),offset=(?P<offset>[0-9]{1,18}))"
    rb",crc=(?P<crc>[0-9a-f]{8})\n"
)


@dataclass(frozen=True, slots=True)
class Cursor:
    """All segments before `segment`, and of that one all before `offset`, are done with."""

    segment: SegmentName
    offset: int

    def encode(self) -> bytes:
        text = f"#:Cursor segment={self.segment},offset={self.offset}".encode("ascii")
        return b"%b,crc=%08x\n" % (text, checksum(0, text))

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """The cursor, or None when the bytes are not a sound one."""
        found = _CURSOR.fullmatch(data)
        if found is None or checksum(0, found["text"]) != int(found["crc"], 16):
            return None
        segment = SegmentName.parse(found["segment"].decode("ascii"))
        return None if segment is None else cls(segment, int(found["offset"]))
