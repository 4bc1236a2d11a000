"""What the journal's tests share: records, opening on any disk, reading all there is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from queue_service.journal import Damage, Journal, Journals, JournalSettings, Record
from queue_service.journal.disk import Disk

from .memory_disk import InlineExecutor

ROOT = Path("data/journal")
BORN = datetime(2026, 11, 18, 8, 0, 0, 123000, tzinfo=UTC)
QUIET = 3600.0  # a cursor interval that never comes up by itself


def record(number: int, body: bytes | None = None, type_: str = "resize") -> Record:
    body = b'{"n":%d}\n' % number if body is None else body
    return Record(
        id=f"r{number:06d}",
        date=BORN + timedelta(milliseconds=number),
        type=type_,
        opts="retries=3&delay=1" if number % 2 else "",
        jobs=body.count(b"\n"),
        body=body,
    )


class Alarms:
    """Collects damage reports."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, Damage]] = []

    def __call__(self, tenant: str, file: str, damage: Damage) -> None:
        self.found.append((tenant, file, damage))

    @property
    def kinds(self) -> list[str]:
        return [str(damage.kind) for _, _, damage in self.found]


def journals_on(
    disk: Disk | None,
    *,
    root: Path = ROOT,
    alarms: Alarms | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    inline: bool = True,
    segment_bytes: int = 1 << 20,
    cursor_every_s: float = QUIET,
    queue_bytes: int = 1 << 26,
    open_files: int = 128,
    tail_bytes: int = 0,
) -> Journals:
    """Without a tail, so that what is read comes from the disk, unless a test asks for one."""
    settings = JournalSettings(
        segment_bytes=segment_bytes,
        cursor_every_s=cursor_every_s,
        queue_bytes=queue_bytes,
        open_files=open_files,
        tail_bytes=tail_bytes,
        group_wait_s=0.0,
    )
    return Journals(
        root,
        settings,
        disk=disk,
        damaged=alarms or Alarms(),
        pool=InlineExecutor() if inline else None,
        clock=clock,
    )


async def drain(journal: Journal, max_records: int = 3, now: float = 0.0) -> list[Record]:
    """Read and commit everything, a few records at a time."""
    found = []
    while (reservation := journal.reserve(max_records, 1 << 20, 60.0, now)) is not None:
        found += await journal.read(reservation)
        assert await journal.commit(reservation)
    return found
