"""Records become batches: the large are cut, the small merged, and no line is lost or doubled."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import strategies as st

from queue_service.batch import NewBatch
from queue_service.gather import Grouping, gather, whole, without
from queue_service.journal import Record
from queue_service.options import Defaults
from queue_service.settings import Settings
from runners.base import Span
from tests.properties import given

BORN = datetime(2026, 11, 18, 8, tzinfo=UTC)
DEFAULTS = Defaults.of(Settings())


def limits(jobs: int = 1000, size: int = 1 << 20) -> Grouping:
    return Grouping(batch_jobs=jobs, batch_bytes=size, defaults=DEFAULTS)


def record(number: int, jobs: int, type_: str = "resize", opts: str = "") -> Record:
    body = b"".join(b"%d-%d\n" % (number, line) for line in range(jobs))
    date = BORN + timedelta(milliseconds=number)
    return Record(id=f"post{number}", date=date, type=type_, opts=opts, jobs=jobs, body=body)


def lines(batches: list[NewBatch]) -> list[tuple[str, int, bytes]]:
    """Every line with the job it belongs to, in order."""
    found = []
    for batch in batches:
        payloads = iter(batch.data.split(b"\n")[:-1])
        for span in batch.spans:
            for line in range(span.first, span.first + span.count):
                found.append((span.post, line, next(payloads)))
        assert next(payloads, None) is None
    return found


def expected(records: list[Record]) -> list[tuple[str, int, bytes]]:
    return [
        (one.id, line, payload)
        for one in records
        for line, payload in enumerate(one.body.split(b"\n")[:-1])
    ]


@pytest.mark.checklist("M34", "M95")
def test_small_neighbours_of_one_type_and_equal_options_become_one_batch() -> None:
    records = [record(1, 2), record(2, 3), record(3, 1)]
    (batch,) = gather("acme", whole(records), limits())
    assert (batch.count, batch.create_dt) == (6, records[0].date)
    assert lines([batch]) == expected(records)


@pytest.mark.checklist("M95")
@pytest.mark.parametrize(
    "other", [record(2, 1, type_="crop"), record(2, 1, type_="resize@2"), record(2, 1, opts="at=1")]
)
def test_other_types_versions_and_options_stay_apart(other: Record) -> None:
    batches = list(gather("acme", whole([record(1, 1), other]), limits()))
    assert len(batches) == 2
    assert {(str(b.jobtype), b.count) for b in batches} == {
        ("acme/resize", 1),
        (f"acme/{other.type}", 1),
    }


@pytest.mark.checklist("M34")
def test_a_large_post_is_cut_at_line_ends_with_its_ids_kept() -> None:
    batches = list(gather("acme", whole([record(1, 25)]), limits(jobs=10)))
    assert [batch.count for batch in batches] == [10, 10, 5]
    assert [batch.id for batch in batches] == ["post1-0.1", "post1-10.1", "post1-20.1"]
    assert lines(batches) == expected([record(1, 25)])


def test_a_deferred_post_is_due_when_it_asked_to_be() -> None:
    (batch,) = gather("acme", whole([record(1, 1, opts="at=2000000000000")]), limits())
    assert batch.dt == datetime(2033, 5, 18, 3, 33, 20, tzinfo=UTC)
    assert batch.create_dt == BORN + timedelta(milliseconds=1)


RECORDS = st.lists(
    st.tuples(st.integers(1, 12), st.sampled_from("ab"), st.sampled_from(["", "retries=1"])),
    max_size=12,
).map(lambda rows: [record(n, jobs, type_, opts) for n, (jobs, type_, opts) in enumerate(rows)])


@given(RECORDS, st.integers(1, 20), st.integers(1, 60))
def test_every_line_is_in_exactly_one_batch_and_in_order_of_its_type(
    records: list[Record], jobs: int, size: int
) -> None:
    batches = list(gather("acme", whole(records), limits(jobs, size)))
    assert sorted(lines(batches)) == sorted(expected(records))
    for kind in {(one.type, one.opts) for one in records}:
        same = [one for one in records if (one.type, one.opts) == kind]
        mine = {one.id for one in same}
        assert [line for line in lines(batches) if line[0] in mine] == expected(same)
    for batch in batches:
        assert batch.count <= jobs
        assert len(batch.data) <= size or batch.count == 1


@pytest.mark.checklist("M2")
@given(RECORDS, st.data())
def test_lines_the_store_has_already_are_left_out_whatever_grouped_them(
    records: list[Record], data: st.DataObject
) -> None:
    covered = [
        Span(post=one.id, first=first, count=data.draw(st.integers(1, one.jobs - first)))
        for one in records
        for first in data.draw(st.lists(st.integers(0, one.jobs - 1), max_size=3))
    ]
    stored = {(s.post, line) for s in covered for line in range(s.first, s.first + s.count)}
    batches = list(gather("acme", without(records, covered), limits()))
    missing = [line for line in expected(records) if line[:2] not in stored]
    assert sorted(lines(batches)) == sorted(missing)
