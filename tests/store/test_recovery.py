"""Reading a journal again after a crash: whatever was stored already is stored once.

The second reading may group the lines quite differently, and some of what the first one stored may
have run since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from queue_service import clock
from queue_service.batch import Options
from queue_service.gather import Grouping, gather, whole, without
from queue_service.journal.record import Record
from queue_service.options import Defaults
from queue_service.store.batches import MongoBatches
from queue_service.store.mongo import Mongo
from runners.base import Bad, Span, StopReason
from tests.store.support import LEASE_S, all_stored, ids_of, new_batch, verdict_on

DEFAULTS = Defaults(
    options=Options(priority=50, timeout_s=60.0, retries=3, retry_delay_s=None, window_s=3600.0),
    timeout_max_s=3600.0,
)
OPTIONS = ("", "priority=70", "retries=0")


def posts(tenant: str, rng: Random) -> list[Record]:
    """Posts of a tenant's journal; each payload names its type and its job."""
    found = []
    for number in range(rng.randint(1, 8)):
        jobs, type_, post = rng.randint(1, 14), rng.choice(("resize", "crop")), f"{tenant}p{number}"
        body = "".join(f"{type_}:{post}-{line}\n" for line in range(jobs)).encode()
        found.append(
            Record(
                id=post,
                date=clock.now(),
                type=type_,
                opts=rng.choice(OPTIONS),
                jobs=jobs,
                body=body,
            )
        )
    return found


def some_grouping(rng: Random) -> Grouping:
    jobs, size = rng.randint(1, 12), rng.choice((1, 40, 150, 10_000))
    return Grouping(batch_jobs=jobs, batch_bytes=size, defaults=DEFAULTS)


async def run_some(batches: MongoBatches, rng: Random) -> None:
    """Run some of what waits: it ends whole or in part, is returned, or is held on to."""
    for waiting in await batches.waiting():
        for _ in range(rng.randint(0, waiting.batches)):
            batch = await batches.claim(waiting.jobtype, LEASE_S)
            if batch is None:
                break
            done = rng.randint(0, batch.count)
            bad = [Bad(n, rng.choice((100, 404, 500))) for n in range(done) if rng.random() < 0.3]
            stop = StopReason.BUDGET if done < batch.count else None
            settlement = verdict_on(batch, *bad, done=done, stop=stop, run_s=1.5)
            if rng.random() < 0.8:
                assert await batches.settle([settlement]) == [True]


def lines_in(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    """How often each job is in a batch; its payload must be its own."""
    found: Counter[str] = Counter()
    for row in rows:
        spans = [Span(post=s["p"], first=s["f"], count=s["e"] - s["f"]) for s in row["spans"]]
        jobs = ids_of(spans)
        expected = "".join(f"{row['type']}:{job}\n" for job in jobs)
        assert row["data"].decode() == expected
        assert row["n"] == len(jobs)
        found.update(jobs)
    return found


@pytest.mark.checklist("M2", "M45", "M95")
@pytest.mark.parametrize("seed", range(4))
async def test_every_line_is_in_exactly_one_batch_of_the_first_attempt(
    mongo: Mongo, batches: MongoBatches, seed: int
) -> None:
    for number in range(5):
        rng = Random(f"{seed}.{number}")
        tenant = f"t{number}"
        records = posts(tenant, rng)
        ids = [record.id for record in records]
        every_line = {f"{one.id}-{n}": 1 for one in records for n in range(one.jobs)}
        for crash in range(3):
            portions = without(records, await batches.covered(tenant, ids))
            new = list(gather(tenant, portions, some_grouping(rng)))
            stored = new if crash == 2 else rng.sample(new, rng.randint(0, len(new)))
            await batches.add(stored)
            await run_some(batches, rng)
        rows = await all_stored(mongo, tenant=tenant, attempt=1)
        assert lines_in(rows) == every_line
        lines_in(await all_stored(mongo, tenant=tenant))
        assert without(records, await batches.covered(tenant, ids)) == []


async def test_covered_is_what_any_batch_of_any_state_holds(
    batches: MongoBatches,
) -> None:
    assert await batches.covered("acme", ["p", "q"]) == []
    await batches.add(
        [new_batch(Span(post="p", first=4, count=2), Span(post="q", first=0, count=1))]
    )
    batch = await batches.claim(new_batch("p").jobtype, LEASE_S)
    assert batch is not None
    await batches.settle([verdict_on(batch, Bad(0, 100), done=2, stop=StopReason.BUDGET)])
    assert sorted(ids_of(await batches.covered("acme", ["p", "q"]))) == ["p-4", "p-4", "p-5", "q-0"]
    assert await batches.covered("beta", ["p", "q"]) == []
    assert await batches.covered("acme", ["r"]) == []
    assert await batches.covered("acme", []) == []


def test_whole_is_without_nothing() -> None:
    records = posts("acme", Random(1))
    assert without(records, []) == whole(records)


# Marks.


async def test_a_mark_never_moves_back(batches: MongoBatches, rival: MongoBatches) -> None:
    assert await batches.mark("one") == 0
    await batches.move_marks({"one": 100, "two": 5})
    await rival.move_marks({"one": 70, "two": 9, "three": 1})
    assert [await batches.mark(name) for name in ("one", "two", "three")] == [100, 9, 1]
    await batches.move_marks({})
    await batches.move_marks({"one": 100})
    assert await rival.mark("one") == 100


async def test_a_mark_outlives_the_batches(mongo: Mongo, batches: MongoBatches) -> None:
    await batches.move_marks({"one": 100})
    await mongo.collection("batches").delete_many({})
    assert await batches.mark("one") == 100
    indexes = await mongo.collection("marks").index_information()
    (expiry,) = [one["expireAfterSeconds"] for one in indexes.values() if len(one) > 2]
    assert expiry >= 30 * 86400
