"""Bytes to records and back: the journal's frame format, version 1.

    #:Batch id=…,date=2026-11-18T08:00:00.123Z,seq=7,jobs=2,bytes=21,type=resize,opts=,
            head=xxxxxxxx,crc=xxxxxxxx\n         (one line in the file)
    <exactly `bytes` bytes: `jobs` payload lines>
    #:EndBatch\n

The reader trusts the byte count and the checksums, never the end marker: a payload may contain
anything, also a text that looks like a frame. Both checksums are CRC32C and begin with the
segment's salt, 128 random bits that stand only in the file's name, so a frame forged inside a
payload does not pass when the reader looks for its way again behind damage. `head` covers the
salt and the header before it, `crc` the salt, the header before it and the body. With `head` a
forged or broken header costs the reader one line, not a pass over a body of its author's choosing;
and when only the body is spoilt, the report can still name the batch. `seq` counts the records of
a segment from 0 and shows when whole records are missing or repeated.

Changing the format: the opening word is the version. Give the new one a new word (`#:Batch2 `),
teach `decode` both and release that; write the new one only in a later release, so that going
back by one release never meets a frame it cannot read. Never change what the old word means.

This module does no I/O and knows nothing of files, offsets in files or durability.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

import google_crc32c

START: Final = b"#:Batch "
END: Final = b"#:EndBatch\n"
SALT_BYTES: Final = 16
HEADER_MAX: Final = 8192  # over three fields of FIELD_MAX and all numbers
FIELD_MAX: Final = 2048

# Printable ASCII without comma and bar: one header line, split by commas, cannot be misread.
_CHARS = r"[ -+\--{}~]"
_NAME = re.compile(rf"{_CHARS}{{1,{FIELD_MAX}}}")
_OPTS = re.compile(rf"{_CHARS}{{0,{FIELD_MAX}}}")
_HEADER = re.compile(
    rf"#:Batch id=(?P<id>{_CHARS}{{1,{FIELD_MAX}}})"
    r",date=(?P<date>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)"
    r",seq=(?P<seq>\d{1,18}),jobs=(?P<jobs>\d{1,10}),bytes=(?P<bytes>\d{1,10})"
    rf",type=(?P<type>{_CHARS}{{1,{FIELD_MAX}}}),opts=(?P<opts>{_CHARS}{{0,{FIELD_MAX}}})"
    r"(?P<head_at>),head=(?P<head>[0-9a-f]{8})(?P<crc_at>),crc=(?P<crc>[0-9a-f]{8})\n".encode()
)
_UTC = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One accepted POST as the journal keeps it.

    `date` is aware, in UTC and has whole milliseconds. `body` holds `jobs` payload lines, each
    ended by a newline; whoever made the record has counted them. Raises ValueError for a value
    that could not be read back the same.
    """

    id: str
    date: datetime
    type: str
    opts: str
    jobs: int
    body: bytes

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.id):
            raise ValueError(f"id {self.id[:80]!r} cannot stand in a journal header")
        _check_kind(self.type, self.opts)
        if self.date.utcoffset() != _UTC or self.date.microsecond % 1000:
            raise ValueError(f"date {self.date} is not UTC with whole milliseconds")
        if self.jobs < 1 or not self.body.endswith(b"\n"):
            raise ValueError("body must hold at least one line and end with a newline")


@lru_cache(maxsize=1024)
def _check_kind(type_: str, opts: str) -> None:
    """Remembered, because most records are of a few kinds."""
    if not _NAME.fullmatch(type_):
        raise ValueError(f"type {type_[:80]!r} cannot stand in a journal header")
    if not _OPTS.fullmatch(opts):
        raise ValueError(f"opts {opts[:80]!r} cannot stand in a journal header")


@lru_cache(maxsize=4)
def _written(date: datetime) -> str:
    return date.isoformat(timespec="milliseconds")[:23]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A record found in a buffer, and where it ends there.

    With `marked` false the end marker is not where it should be and `end` is the body's end.
    """

    record: Record
    seq: int
    end: int
    marked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Incomplete:
    """The buffer stops inside the frame, which takes at least `size` bytes in all."""

    size: int


def encode(record: Record, seq: int, salt: bytes) -> tuple[bytes, bytes, bytes]:
    """The frame in three pieces, so that a body is not copied before it is written."""
    header = (
        f"#:Batch id={record.id},date={_written(record.date)}Z,seq={seq},jobs={record.jobs}"
        f",bytes={len(record.body)},type={record.type},opts={record.opts}"
    ).encode("ascii")
    head = checksum(0, salt + header)
    sealed = b",head=%08x" % head
    crc = checksum(checksum(head, sealed), record.body)
    return b"%b%b,crc=%08x\n" % (header, sealed, crc), record.body, END


def decode(buffer: bytes, at: int, salt: bytes, *, final: bool) -> Frame | Incomplete | None:
    """The frame that begins at `at`, or None when there is no sound one.

    `final` says that nothing follows the buffer: then what is incomplete is not sound.
    """
    header = _header(buffer, at, salt)
    if header is None:
        if final or len(buffer) - at >= HEADER_MAX or buffer.find(b"\n", at) >= 0:
            return None
        return Incomplete(size=HEADER_MAX)
    body_at = header.end()
    body_end = body_at + int(header["bytes"])
    end = body_end + len(END)
    if len(buffer) < (body_end if final else end):
        return None if final else Incomplete(size=end - at)
    body = buffer[body_at:body_end]
    crc = checksum(checksum(0, salt + buffer[at : header.start("crc_at")]), body)
    if crc != int(header["crc"], 16):
        return None
    try:
        record = _record(header, body)
    except ValueError:
        return None  # a header that no writer of ours makes, such as a 31st of February
    marked = buffer.startswith(END, body_end)
    return Frame(
        record=record, seq=int(header["seq"]), end=end if marked else body_end, marked=marked
    )


def batch_id(buffer: bytes, at: int, salt: bytes) -> str | None:
    """The id in the header at `at` when that header is sound, whatever became of its body."""
    header = _header(buffer, at, salt)
    return None if header is None else header["id"].decode("ascii")


def checksum(crc: int, data: bytes) -> int:
    """CRC32C of `data`, continuing `crc` (0 at the beginning)."""
    return int(google_crc32c.extend(crc, data))


def _header(buffer: bytes, at: int, salt: bytes) -> re.Match[bytes] | None:
    header = _HEADER.match(buffer, at)
    if header is None:
        return None
    head = checksum(0, salt + buffer[at : header.start("head_at")])
    return header if head == int(header["head"], 16) else None


def _record(header: re.Match[bytes], body: bytes) -> Record:
    return Record(
        id=header["id"].decode("ascii"),
        date=datetime.fromisoformat(header["date"].decode("ascii")),
        type=header["type"].decode("ascii"),
        opts=header["opts"].decode("ascii"),
        jobs=int(header["jobs"]),
        body=body,
    )
