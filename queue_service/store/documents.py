"""Batch documents: their fields, the named filters and updates over them, and the indexes.

Pure functions from values to documents and back. Runs no query and knows no connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from bson.binary import Binary
from pymongo import DESCENDING, IndexModel

from handlers.names import JobType
from queue_service.batch import (
    DONE,
    FIRST_SYSID,
    FREE,
    BadLine,
    Batch,
    Fence,
    Finished,
    NewBatch,
    Options,
    State,
    archived_dt,
    code_of,
    codes_of,
    meters_of,
)
from runners.base import Span

Document = dict[str, Any]

_DUE: Document = {"$expr": {"$lte": ["$dt", "$$NOW"]}}
_FREE: Document = {"lock": FREE}
_HELD: Document = {"lock": {"$gte": FIRST_SYSID}}
_DONE: Document = {"lock": DONE}
CODES = ("ok", "failed", "retry", "error")
METERS = ("run_us", "cpu_us", "load_us")
# A done batch carries its counts by code, and what it used, until they are folded into the counts
# collection.
_UNFOLDED: Document = {"tally.ok": {"$exists": True}}
_FOLDED: Document = {"tally.ok": {"$exists": False}}

# Claims and the waiting list must not see the archive, so their indexes are partial: a batch leaves
# them with the claim. The waiting list and the scoreboard are answered from the index alone.
INDEXES = [
    IndexModel(
        [("tenant", 1), ("type", 1), ("prio", DESCENDING), ("dt", 1), ("n", 1), ("lock", 1)],
        name="claim",
        partialFilterExpression=_FREE,
    ),
    IndexModel(
        [("lock", 1), ("dt", 1), ("tenant", 1), ("type", 1), ("n", 1)],
        name="waiting",
        partialFilterExpression=_FREE,
    ),
    IndexModel([("dt", 1), ("lock", 1)], name="held", partialFilterExpression=_HELD),
    IndexModel([("tenant", 1), ("spans.p", 1)], name="job"),
    IndexModel(
        [("tenant", 1), ("done_dt", 1), ("_id", 1), ("type", 1)],
        name="results",
        partialFilterExpression=_DONE,
    ),
    IndexModel([("done_dt", 1)], name="purge", partialFilterExpression=_DONE),
    IndexModel(
        [
            ("tenant", 1),
            ("type", 1),
            ("by", 1),
            ("done_dt", 1),
            *((f"tally.{name}", 1) for name in CODES + METERS),
        ],
        name="metered",
        partialFilterExpression=_UNFOLDED,
    ),
]


def ready_at(now: datetime) -> Document:
    return _FREE | {"dt": {"$lte": now}}


def ready_of(jobtype: JobType) -> Document:
    return {"tenant": jobtype.tenant, "type": jobtype.type} | _FREE | _DUE


def window_ended() -> Document:
    return {"$expr": {"$and": [{"$lte": ["$dt", "$$NOW"]}, {"$lte": ["$expire_dt", "$$NOW"]}]}}


def held_by(lock: str, ids: Sequence[str]) -> Document:
    return {"_id": {"$in": list(ids)}, "lock": lock}


def under(fence: Fence) -> Document:
    """The fence as a filter: matches nothing once anybody else has claimed the batch."""
    return {"_id": fence.id, "lock": fence.lock, "gen": fence.gen}


def abandoned() -> Document:
    return _HELD | _DUE


def purgeable(done_before: datetime) -> Document:
    return _DONE | _FOLDED | {"done_dt": {"$lt": done_before}}


def to_fold(lock: str, done_before: datetime) -> Document:
    """Done batches whose counts this daemon adds up: its own, and those others left lying."""
    return _UNFOLDED | {"$or": [{"by": lock}, {"done_dt": {"$lt": done_before}}]}


def unfolded_of(tenant: str) -> Document:
    # A comparison that an index covers, unlike $exists, and that holds for every count.
    return {"tenant": tenant, "tally.ok": {"$gte": 0}}


def to_folded() -> Document:
    return {"$unset": {"tally": 1}}


def done_of(tenant: str) -> Document:
    return {"tenant": tenant} | _DONE


def in_state(state: State | None, now: datetime) -> Document:
    """Batches in one state; a batch whose lease has just ended still counts as running."""
    if state is None:
        return {}
    return {
        State.DEFERRED: _FREE | {"dt": {"$gt": now}},
        State.READY: _FREE | {"dt": {"$lte": now}},
        State.RUNNING: _HELD,
        State.DONE: _DONE,
    }[state]


def unfolded_counts(tenant: str) -> list[Document]:
    """A pipeline that adds up, by type, the ended attempts not folded yet and what they used."""
    sums = {name: {"$sum": f"$tally.{name}"} for name in CODES + METERS}
    return [{"$match": unfolded_of(tenant)}, {"$group": {"_id": "$type", **sums}}]


def live_jobs(tenant: str) -> dict[str, list[Document]]:
    """Pipelines that count a tenant's jobs that wait, are deferred or are held, by type.

    By the index each must use: left alone, the planner may read the tenant's whole archive.
    """
    waits = {"$cond": [{"$lte": ["$dt", "$$NOW"]}, "waiting", "deferred"]}
    return {
        index: [
            {"$match": {"tenant": tenant} | where},
            {"$group": {"_id": {"type": "$type", "state": state}, "jobs": {"$sum": "$n"}}},
        ]
        for index, where, state in (
            ("claim", _FREE, waits),
            ("held", _HELD, {"$literal": "running"}),
        )
    }


def _server_time_plus(seconds: float) -> Document:
    return {"$add": ["$$NOW", round(seconds * 1000)]}


def to_claimed(lock: str, lease_s: float) -> list[Document]:
    return [
        {
            "$set": {
                "lock": lock,
                "ready_dt": "$dt",
                "claim_dt": "$$NOW",
                "dt": _server_time_plus(lease_s),
                "gen": {"$add": ["$gen", 1]},
            }
        }
    ]


def to_renewed(lease_s: float) -> list[Document]:
    return [{"$set": {"dt": _server_time_plus(lease_s)}}]


def absent(batch_id: str) -> Document:
    """Matches nothing, so that an upsert with it inserts; or fails if the batch is there."""
    return {"_id": batch_id, "gen": {"$exists": False}}


def to_free(by: str, after_s: float, *, careful: bool) -> list[Document]:
    """Back to waiting without an attempt lost: the seed's `unget`."""
    change: Document = {"lock": FREE, "dt": _server_time_plus(after_s), "by": by}
    if careful:
        change["careful"] = True
    return [{"$set": change}]


def to_recovered() -> list[Document]:
    """What a sweep does: free, with the recovery counted, and watched job by job next time."""
    recoveries: Document = {"$add": ["$recoveries", 1]}
    change = {"lock": FREE, "dt": "$$NOW", "recoveries": recoveries, "careful": True, "by": ""}
    return [{"$set": change}]


def to_finished(done: Finished, by: str, *, narrowed: bool, out_at: str | None) -> Document:
    """The end of a batch: DONE, with its results. Nothing moves it on but the purge.

    `narrowed`: only its first lines have ended, the others went to successors. `out_at` names the
    file that holds an oversized result block. `by` lets a daemon whose answer was lost find out
    that the result in the store is its own. The answer holds fields to be set.
    """
    change: Document = {
        "lock": DONE,
        "dt": archived_dt(done.done_dt),
        "done_dt": done.done_dt,
        "ok": done.ok,
        "bad": [[line.index, line.exitcode, line.again] for line in done.bad],
        "codes": sorted(final_codes(done)),
        "tally": dict.fromkeys(CODES, 0) | codes_of(done) | meters_of(done),
        "out": Binary(b"" if out_at is not None else done.out),
        "run_s": done.run_s,
        "cpu_s": done.cpu_s,
        "load_s": done.load_s,
        "load_cpu_s": done.load_cpu_s,
        "wait_s": done.wait_s,
        "version": done.handler_version,
        "by": by,
    }
    if out_at is not None:
        change["out_at"] = out_at
    if done.log:
        change["log"] = Binary(done.log)
    if narrowed:
        change |= {"n": done.count, "spans": _from_spans(done.spans), "data": Binary(done.data)}
    return change


def settled_by(lock: str, ids: Sequence[str]) -> Document:
    """Batches that this daemon ended, or gave back and nobody has claimed since."""
    return {"_id": {"$in": list(ids)}, "by": lock, "lock": {"$in": [DONE, FREE]}}


def as_it_is(fence: Fence) -> Document:
    """An update that changes nothing."""
    return {"$set": {"lock": fence.lock}}


def final_codes(done: Finished) -> set[str]:
    """The codes of those jobs of a batch that will not be run again."""
    codes = {code_of(line.exitcode) for line in done.bad if not line.again}
    return codes | {"ok"} if done.ok else codes


def from_new(batch: NewBatch, *, data_at: str | None) -> Document:
    document: Document = {
        "_id": batch.id,
        "tenant": batch.jobtype.tenant,
        "type": batch.jobtype.type,
        "dt": batch.dt,
        "lock": FREE,
        "gen": 0,
        "prio": batch.options.priority,
        "attempt": batch.attempt,
        "n": batch.count,
        "spans": _from_spans(batch.spans),
        "data": Binary(b"" if data_at is not None else batch.data),
        "opts": {
            "timeout_s": batch.options.timeout_s,
            "retries": batch.options.retries,
            "retry_delay_s": batch.options.retry_delay_s,
            "window_s": batch.options.window_s,
        },
        "create_dt": batch.create_dt,
        "due_dt": batch.due_dt,
        "expire_dt": batch.expire_dt,
        "recoveries": 0,
        "careful": batch.careful,
    }
    if batch.strikes:
        document["strikes"] = batch.strikes
    if data_at is not None:
        document["data_at"] = data_at
    return document


def to_held(document: Document, fence: Fence, lease_s: float) -> list[Document]:
    """Put a batch there under a lease, which only an update can reckon by the server's clock."""
    held: Document = {
        "lock": fence.lock,
        "gen": fence.gen,
        "ready_dt": document["dt"],
        "claim_dt": "$$NOW",
        "dt": _server_time_plus(lease_s),
    }
    return [{"$replaceWith": {"$mergeObjects": [{"$literal": document}, held]}}]


def to_batch(document: Mapping[str, Any]) -> Batch:
    return Batch(
        fence=Fence(id=document["_id"], lock=document["lock"], gen=document["gen"]),
        jobtype=jobtype_of(document),
        spans=to_spans(document["spans"]),
        count=document["n"],
        data=document["data"],
        attempt=document["attempt"],
        options=_to_options(document),
        create_dt=document["create_dt"],
        claim_dt=document["claim_dt"],
        ready_dt=document["ready_dt"],
        careful=document["careful"],
        recoveries=document["recoveries"],
        due_dt=document["due_dt"],
        strikes=document.get("strikes", 0),
    )


def to_done(document: Mapping[str, Any]) -> Finished:
    return Finished(
        id=document["_id"],
        jobtype=jobtype_of(document),
        spans=to_spans(document["spans"]),
        count=document["n"],
        data=document.get("data", b""),
        attempt=document["attempt"],
        ok=document["ok"],
        bad=tuple(BadLine(*line) for line in document["bad"]),
        out=document.get("out", b""),
        log=document.get("log", b""),
        done_dt=document["done_dt"],
        create_dt=document["create_dt"],
        run_s=document["run_s"],
        cpu_s=document["cpu_s"],
        wait_s=document["wait_s"],
        handler_version=document["version"],
        load_s=document.get("load_s", 0.0),
        load_cpu_s=document.get("load_cpu_s", 0.0),
    )


def jobtype_of(document: Mapping[str, Any]) -> JobType:
    return JobType(document["tenant"], document["type"])


def holds_job(tenant: str, post: str, line: int) -> Document:
    span = {"p": post, "f": {"$lte": line}, "e": {"$gt": line}}
    return {"tenant": tenant, "spans": {"$elemMatch": span}}


def _from_spans(spans: Sequence[Span]) -> list[Document]:
    return [{"p": span.post, "f": span.first, "e": span.first + span.count} for span in spans]


def to_spans(spans: Sequence[Mapping[str, Any]]) -> tuple[Span, ...]:
    return tuple(Span(post=s["p"], first=s["f"], count=s["e"] - s["f"]) for s in spans)


def _to_options(document: Mapping[str, Any]) -> Options:
    opts = document["opts"]
    return Options(
        priority=document["prio"],
        timeout_s=opts["timeout_s"],
        retries=opts["retries"],
        retry_delay_s=opts["retry_delay_s"],
        window_s=opts["window_s"],
    )
