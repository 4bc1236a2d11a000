"""Gathering: journal records become batches. Large posts are cut at line ends, small ones merged.

Pure: records in, batches out, the order within each type kept. What is read again after a crash is
first relieved of the lines that are in the store already, so that storing twice stores once,
however the second reading groups them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from handlers.names import JobType
from queue_service import block
from queue_service.batch import NewBatch
from queue_service.journal.record import Record
from queue_service.options import Defaults, understand
from runners.base import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """How large a batch may be, and what holds where a record asks for nothing."""

    batch_jobs: int
    batch_bytes: int
    defaults: Defaults


class Portion(NamedTuple):
    """Some neighbouring lines of a record, usually all of them."""

    record: Record
    span: Span
    body: bytes


def whole(records: Iterable[Record]) -> list[Portion]:
    """All lines of all records."""
    return [
        Portion(record, Span(post=record.id, first=0, count=record.jobs), record.body)
        for record in records
    ]


def without(records: Iterable[Record], covered: Iterable[Span]) -> list[Portion]:
    """The lines that are not covered, record by record."""
    stored: dict[str, list[Span]] = {}
    for span in covered:
        stored.setdefault(span.post, []).append(span)
    return [
        portion
        for record in records
        for portion in _gaps(record, sorted(stored.get(record.id, ()), key=lambda s: s.first))
    ]


def _gaps(record: Record, stored: Sequence[Span]) -> Iterator[Portion]:
    first = start = 0
    for span in (*stored, Span(post=record.id, first=record.jobs, count=0)):
        missing = span.first - first
        if missing > 0:
            end = block.offset_of(record.body, missing, start)
            yield Portion(
                record, Span(post=record.id, first=first, count=missing), record.body[start:end]
            )
            first, start = span.first, end
        seen = span.first + span.count - first
        if seen > 0:
            first, start = first + seen, block.offset_of(record.body, seen, start)


@dataclass(slots=True)
class _Group:
    """Small portions of one jobtype and equal options, on their way to become one batch."""

    portions: list[Portion] = field(default_factory=list)
    jobs: int = 0
    size: int = 0

    def fits(self, portion: Portion, limits: Grouping) -> bool:
        return (
            self.jobs + portion.span.count <= limits.batch_jobs
            and self.size + len(portion.body) <= limits.batch_bytes
        )

    def add(self, portion: Portion) -> None:
        self.portions.append(portion)
        self.jobs += portion.span.count
        self.size += len(portion.body)


def gather(tenant: str, portions: Iterable[Portion], limits: Grouping) -> Iterator[NewBatch]:
    """Make batches of a tenant's records: cut the large, merge the small."""
    groups: dict[tuple[str, str], _Group] = {}
    for portion in portions:
        key = (portion.record.type, portion.record.opts)
        group = groups.get(key)
        if group and not group.fits(portion, limits):
            yield _merged(tenant, groups.pop(key), limits)
            group = None
        if portion.span.count > limits.batch_jobs or len(portion.body) > limits.batch_bytes:
            yield from _cut(tenant, portion, limits)
            continue
        if group is None:
            group = groups[key] = _Group()
        group.add(portion)
    for group in groups.values():
        yield _merged(tenant, group, limits)


def _merged(tenant: str, group: _Group, limits: Grouping) -> NewBatch:
    spans = tuple([portion.span for portion in group.portions])
    data = b"".join([portion.body for portion in group.portions])
    return _batch(tenant, group.portions[0].record, spans, group.jobs, data, limits)


def _cut(tenant: str, portion: Portion, limits: Grouping) -> Iterator[NewBatch]:
    first = portion.span.first
    for data, count in block.cut(portion.body, limits.batch_jobs, limits.batch_bytes):
        spans = (Span(post=portion.record.id, first=first, count=count),)
        yield _batch(tenant, portion.record, spans, count, data, limits)
        first += count


def _batch(
    tenant: str,
    record: Record,
    spans: tuple[Span, ...],
    count: int,
    data: bytes,
    limits: Grouping,
) -> NewBatch:
    options, due = understand(record.opts, limits.defaults)
    return NewBatch(
        jobtype=JobType(tenant, record.type),
        spans=spans,
        count=count,
        data=data,
        dt=due or record.date,
        attempt=1,
        options=options,
        create_dt=record.date,
        due_dt=due,
    )
