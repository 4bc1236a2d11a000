"""Reads records out of a segment, around whatever is damaged, and says what was damaged.

Sound records before and behind a spoilt stretch are delivered, the stretch itself is described in
a `Damage`, and nothing is left out silently. This module reads through a function it is given; it
does not set bytes aside or report, which is the journal's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from queue_service.journal.record import START, Frame, Incomplete, Record, batch_id, decode

ReadAt = Callable[[int, int], bytes]  # (offset, size) -> bytes


class DamageKind(StrEnum):
    BYTES = "bytes"  # a stretch that holds no sound record, with sound ones behind it
    TAIL = "tail"  # the same up to the end: usually a write that a crash cut short
    MARKER = "marker"  # an end marker is missing or spoilt; its record was delivered
    GAP = "gap"  # sequence numbers were left out: whole records are gone
    REPEAT = "repeat"  # a record that has been there before; not delivered again
    CURSOR = "cursor"  # the read point was unreadable or lay behind the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What is wrong with `length` bytes of a file from `offset` on; `detail` is for people."""

    kind: DamageKind
    offset: int
    length: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What was found from the start up to `end`; `seq` is the number expected there, if known."""

    records: list[Record]
    end: int
    seq: int | None
    damage: list[Damage]


class Scanner:
    """Reads `[start, end)` of one segment; `seq` is the number expected at `start`, if known."""

    def __init__(self, read: ReadAt, salt: bytes, start: int, end: int, seq: int | None) -> None:
        self._read = read
        self._salt = salt
        self._start = start
        self._end = self._until = end
        self._seq = seq
        self._buffer = b""
        self._base = start
        self._records: list[Record] = []
        self._damage: list[Damage] = []

    def scan(self, max_records: int, max_bytes: int) -> Scan:
        """Records within both limits; at least one, if there is one, however large it is."""
        self._load(self._start, max_bytes)
        limit = self._start + max_bytes
        at = self._start
        while at < self._end and len(self._records) < max_records:
            found = self._decode(at)
            if isinstance(found, Incomplete):
                if self._records and at + found.size > limit:
                    break
                self._load(at, found.size)
            elif found is None:
                at = self._skip(at, DamageKind.BYTES)
            elif self._records and self._base + found.end > limit:
                break
            else:
                at = self._take(at, found)
        if at == self._end < self._until:
            self._note(DamageKind.TAIL, at, self._until, "the file is shorter than it was")
            at = self._until
        return Scan(records=self._records, end=at, seq=self._seq, damage=self._damage)

    def _load(self, at: int, size: int) -> None:
        self._buffer = self._read(at, min(size, self._end - at))
        self._base = at
        if len(self._buffer) < min(size, self._end - at):
            self._end = at + len(self._buffer)

    def _decode(self, at: int) -> Frame | Incomplete | None:
        final = self._base + len(self._buffer) >= self._end
        return decode(self._buffer, at - self._base, self._salt, final=final)

    def _take(self, at: int, frame: Frame) -> int:
        """Deliver the frame and return where to go on."""
        end = self._base + frame.end
        if self._seq is not None and frame.seq < self._seq:
            detail = f"record {frame.seq} where {self._seq} was expected"
            self._note(DamageKind.REPEAT, at, end, detail)
        else:
            if self._seq is not None and frame.seq > self._seq:
                missing = f"records {self._seq} to {frame.seq - 1} are missing"
                self._note(DamageKind.GAP, at, at, missing)
            self._seq = frame.seq + 1
            self._records.append(frame.record)
        return end if frame.marked else self._skip(end, DamageKind.MARKER)

    def _skip(self, at: int, kind: DamageKind) -> int:
        """Note the spoilt stretch at `at` and return where the next sound record begins."""
        self._load(at, self._end - at)
        found = 0
        while (found := self._buffer.find(START, found)) >= 0 and not isinstance(
            decode(self._buffer, found, self._salt, final=True), Frame
        ):
            found += 1
        end = self._end if found < 0 else at + found
        if kind is DamageKind.BYTES and end == self._end:
            kind = DamageKind.TAIL
        spoilt = batch_id(self._buffer, 0, self._salt)
        self._note(kind, at, end, f"batch {spoilt}" if spoilt else "no readable header")
        return end

    def _note(self, kind: DamageKind, start: int, end: int, detail: str) -> None:
        self._damage.append(Damage(kind=kind, offset=start, length=end - start, detail=detail))
