"""What the store's tests share: batches whose payloads are their job ids, verdicts on them, looks
behind the store's verbs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from pymongo.read_concern import ReadConcern

from handlers.names import JobType
from queue_service import clock
from queue_service.batch import Batch, NewBatch, Options, Settlement, taken
from queue_service.store.base import Sysid
from queue_service.store.batches import MongoBatches
from queue_service.store.mongo import Mongo
from queue_service.store.results import MongoResults
from queue_service.verdict import RetryPolicy, decide
from runners.base import Bad, Outcome, Span, Stop, StopReason

RESIZE = JobType("acme", "resize")
LEASE_S = 60.0
RETRY_DELAY_S = 30.0
VERSION = 7
POLICY = RetryPolicy(base_s=5.0, cap_s=900.0, budget_s=1.0)
# Written as documents by hand: moments on this and that side of any test.
LONG_AGO = datetime(2020, 2, 29, tzinfo=UTC)
FAR_AWAY = datetime(2800, 1, 1, tzinfo=UTC)


def ids_of(spans: Sequence[Span]) -> list[str]:
    return [f"{span.post}-{span.first + n}" for span in spans for n in range(span.count)]


def payloads_of(spans: Sequence[Span]) -> bytes:
    """Each line's payload is its job id, so that none can be mistaken."""
    return "".join(f"{job}\n" for job in ids_of(spans)).encode()


def new_batch(
    *posts: str | Span,
    lines: int = 3,
    jobtype: JobType = RESIZE,
    dt: datetime | None = None,
    priority: int = 50,
    attempt: int = 1,
    retries: int = 3,
    window_s: float = 3600.0,
    created: datetime | None = None,
    data: bytes | None = None,
) -> NewBatch:
    """A batch of `lines` lines of each post (or of just these spans), due since a minute."""
    spans = tuple(
        Span(post=post, first=0, count=lines) if isinstance(post, str) else post for post in posts
    )
    now = clock.now()
    return NewBatch(
        jobtype=jobtype,
        spans=spans,
        count=sum(span.count for span in spans),
        data=payloads_of(spans) if data is None else data,
        dt=dt or now - timedelta(seconds=60),
        attempt=attempt,
        options=Options(
            priority=priority,
            timeout_s=60.0,
            retries=retries,
            retry_delay_s=RETRY_DELAY_S,
            window_s=window_s,
        ),
        create_dt=created or now,
    )


def verdict_on(
    batch: Batch,
    *bad: Bad,
    done: int | None = None,
    stop: StopReason | None = None,
    out: bytes | None = None,
    now: datetime | None = None,
    run_s: float = 0.5,
) -> Settlement:
    """The settlement of a run that ended `done` lines (all, if not said), all ok but `bad`."""
    count = batch.count if done is None else done
    outcome = Outcome(
        done=count,
        ok=count - len(bad),
        bad=bad,
        out=b"".join(b'{"n":%d}\n' % n for n in range(count)) if out is None else out,
        stop=None if stop is None else Stop(reason=stop, detail=f"it was {stop}", blamed=None),
        log=b"said something\n",
        run_s=run_s,
        cpu_s=0.25,
    )
    moment = now or clock.now()
    return decide(batch, outcome, version=VERSION, now=moment, policy=POLICY, rng=Random(1))


def archived(
    post: str,
    *bad: Bad,
    lines: int = 3,
    jobtype: JobType = RESIZE,
    lock: str = "s1.1",
    done: datetime | None = None,
) -> Settlement:
    """A batch that comes into the store already done, with nothing to be tried again."""
    new = new_batch(post, lines=lines, jobtype=jobtype, retries=0)
    return replace(verdict_on(taken(new, lock, clock.now()), *bad, now=done), unstored=new)


def daemon(mongo: Mongo, slot: int = 1, epoch: int = 1) -> MongoBatches:
    """The batches as one daemon has them."""
    return MongoBatches(mongo, Sysid(slot=slot, epoch=epoch))


async def claimed(
    batches: MongoBatches, jobtype: JobType = RESIZE, lease_s: float = LEASE_S
) -> Batch:
    """Claim where there must be something to claim."""
    batch = await batches.claim(jobtype, lease_s)
    assert batch is not None
    return batch


async def held(batches: MongoBatches, new: NewBatch, lease_s: float = LEASE_S) -> Batch:
    """Add one batch and claim it."""
    await batches.add([new])
    batch = await claimed(batches, new.jobtype, lease_s)
    assert batch.fence.id == new.id
    return batch


async def lapsed(mongo: Mongo, batches: MongoBatches, new: NewBatch) -> Batch:
    """Add one batch, claim it and let its lease end."""
    batch = await held(batches, new)
    await put_into(mongo, new.id, dt=LONG_AGO)
    return batch


async def ended(batches: MongoBatches, new: NewBatch, *bad: Bad, **how: Any) -> Settlement:
    """Add, claim and settle one batch."""
    settlement = verdict_on(await held(batches, new), *bad, **how)
    assert await batches.settle([settlement]) == [True]
    return settlement


async def stored(mongo: Mongo, batch_id: str) -> dict[str, Any]:
    """A batch's document as it is this moment, also where no majority has it yet."""
    local = mongo.collection("batches").with_options(read_concern=ReadConcern("local"))
    document = await local.find_one({"_id": batch_id})
    assert document is not None
    return document


async def all_stored(mongo: Mongo, **where: Any) -> list[dict[str, Any]]:
    local = mongo.collection("batches").with_options(read_concern=ReadConcern("local"))
    return await local.find(where).sort("_id", 1).to_list()


async def put_into(mongo: Mongo, batch_id: str, **fields: Any) -> None:
    """Write fields of a document past all verbs."""
    result = await mongo.collection("batches").update_one({"_id": batch_id}, {"$set": fields})
    assert result.matched_count == 1


async def empty(mongo: Mongo) -> None:
    """Delete everything but the indexes."""
    for name in await mongo.database.list_collection_names():
        await mongo.collection(name).delete_many({})


async def watched(mongo: Mongo, verb: Awaitable[Any]) -> list[dict[str, Any]]:
    """What the server did for a verb, according to its own profiler."""
    await mongo.database.command({"profile": 2})
    await verb
    await mongo.database.command({"profile": 0})
    profile = mongo.database["system.profile"]
    done = await profile.find({"ns": {"$regex": r"\.(?!system)"}}).sort("ts", 1).to_list()
    await profile.drop()
    return done


async def counts_of(results: MongoResults, tenant: str = "acme") -> dict[str, Mapping[str, int]]:
    """The scoreboard's numbers without the zeros."""
    return {
        row.type: {
            name: number
            for name, number in [
                ("waiting", row.waiting),
                ("deferred", row.deferred),
                ("running", row.running),
                *row.codes.items(),
            ]
            if number
        }
        for row in await results.scoreboard(tenant)
    }
