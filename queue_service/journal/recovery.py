"""What an earlier life left in a tenant's directory, and where reading goes on.

Looks at names, sizes and the cursor only; records are checked when they are read. Whatever the
files contain, opening succeeds: a cursor that cannot be believed means reading again from the
front, which the store absorbs. Nothing is changed on disk here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from queue_service.journal import cursor as cursors
from queue_service.journal.cursor import Cursor
from queue_service.journal.disk import Disk
from queue_service.journal.scan import Damage, DamageKind
from queue_service.journal.segment import SegmentName


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A segment of an earlier life: `end` is its size, `point` where reading goes on."""

    name: SegmentName
    point: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A directory as it was found. `spent` are the segments that hold nothing unread."""

    cursor: Cursor | None = None
    leftovers: tuple[Leftover, ...] = ()
    spent: tuple[SegmentName, ...] = ()
    damage: tuple[Damage, ...] = ()

    @property
    def last_ms(self) -> int:
        """The time in the latest name that is known, so that new names sort behind it."""
        known = [leftover.name.ms for leftover in self.leftovers]
        known += [name.ms for name in self.spent]
        if self.cursor is not None:
            known.append(self.cursor.segment.ms)
        return max(known, default=0)


def recover(disk: Disk, directory: Path) -> Recovered:
    """Look at `directory`, which exists."""
    files = disk.names(directory)
    cursor, damage = None, []
    if cursors.FILE_NAME in files:
        cursor = Cursor.decode(disk.read(directory / cursors.FILE_NAME, 0, cursors.SIZE_MAX))
        if cursor is None:
            damage.append(_bad_cursor(0, "unreadable: reading again from the front"))
    leftovers, spent = [], []
    for name in sorted(filter(None, map(SegmentName.parse, files))):
        size = disk.size(directory / str(name))
        point = _point(name, cursor, size)
        if point > size:
            damage.append(_bad_cursor(point, f"{name} has only {size} bytes"))
        if point < size:
            leftovers.append(Leftover(name=name, point=point, end=size))
        else:
            spent.append(name)
    return Recovered(
        cursor=cursor, leftovers=tuple(leftovers), spent=tuple(spent), damage=tuple(damage)
    )


def _point(name: SegmentName, cursor: Cursor | None, size: int) -> int:
    if cursor is None or name > cursor.segment:
        return 0
    return cursor.offset if name == cursor.segment else size


def _bad_cursor(offset: int, detail: str) -> Damage:
    return Damage(kind=DamageKind.CURSOR, offset=offset, length=0, detail=detail)
