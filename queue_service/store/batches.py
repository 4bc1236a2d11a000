"""The life of batches in MongoDB: add, waiting, claim, renew, settle, sweep, fold, purge.

One method per verb; filters and updates have names in `documents`. Does not decide anything:
what to claim is the scheduler's business, what to write at the end `settle`'s.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta

from pymongo import ReturnDocument, UpdateOne, WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import BulkWriteError, DuplicateKeyError

from handlers.names import JobType
from queue_service.batch import Batch, Fence, Finished, NewBatch, Settlement
from queue_service.store import documents
from queue_service.store.base import Sysid, Waiting
from queue_service.store.blobs import INLINE_MAX_BYTES, Blobs
from queue_service.store.documents import CODES, METERS, Document
from queue_service.store.mongo import Mongo
from runners.base import Span

_DUPLICATE = 11000
_CLAIM_ORDER = [("prio", -1), ("dt", 1)]
# Left unfolded for so long, a batch is anybody's to fold: its daemon is gone.
_FOLD_OTHERS_AFTER = timedelta(seconds=60)


class _Outdated(Exception):
    """At least one fence of a group matched nothing."""


class MongoBatches:
    """`BatchStore` for one daemon, identified by its sysid."""

    def __init__(self, mongo: Mongo, sysid: Sysid) -> None:
        self._mongo = mongo
        self._batches = mongo.collection("batches")
        # A claim may be rolled back with a primary that fails: the fence then lets nothing of it
        # through, and the batch is run again. So it need not wait for a majority, whereas
        # everything that follows a claim does, and is behind it in the log.
        self._claims = self._batches.with_options(write_concern=WriteConcern(1))
        self._counts = mongo.collection("counts")
        self._marks = mongo.collection("marks")
        self._blobs = Blobs(mongo)
        self._slot = sysid.slot
        self._lock = str(sysid)

    # Into the store.

    async def add(self, batches: Sequence[NewBatch]) -> None:
        await self._insert([await self._document(batch, "data") for batch in batches])

    async def _document(self, new: NewBatch, name: str) -> Document:
        return documents.from_new(new, data_at=await self._blobs.keep(f"{new.id}/{name}", new.data))

    async def _insert(self, new: list[Document]) -> set[str]:
        """Insert; the ids of those that were there already."""
        if not new:
            return set()
        with self._mongo.answering():
            try:
                await self._batches.insert_many(new, ordered=False)
            except BulkWriteError as error:
                problems = error.details["writeErrors"]
                others = [problem for problem in problems if problem["code"] != _DUPLICATE]
                if others or error.details["writeConcernErrors"]:
                    raise
                return {new[problem["index"]]["_id"] for problem in problems}
        return set()

    async def add_held(self, new: NewBatch, fence: Fence, lease_s: float) -> None:
        held = documents.to_held(await self._document(new, "data"), fence, lease_s)
        with self._mongo.answering():
            try:
                await self._batches.update_one(documents.absent(new.id), held, upsert=True)
            except DuplicateKeyError:
                return

    async def covered(self, tenant: str, posts: Sequence[str]) -> list[Span]:
        wanted = {"tenant": tenant, "spans.p": {"$in": list(posts)}}
        with self._mongo.answering():
            rows = await self._batches.find(wanted, {"spans": 1}).to_list()
        return [span for row in rows for span in documents.to_spans(row["spans"])]

    async def mark(self, segment: str) -> int:
        with self._mongo.answering():
            found = await self._marks.find_one({"_id": segment})
        return int(found["end"]) if found else 0

    async def move_marks(self, ends: Mapping[str, int]) -> None:
        moves = [
            UpdateOne(
                {"_id": segment}, {"$max": {"end": end}, "$currentDate": {"at": True}}, upsert=True
            )
            for segment, end in ends.items()
        ]
        if moves:
            with self._mongo.answering():
                await self._marks.bulk_write(moves, ordered=False)

    # From waiting to running.

    async def waiting(self) -> list[Waiting]:
        group = {
            "_id": {"tenant": "$tenant", "type": "$type"},
            "batches": {"$sum": 1},
            "jobs": {"$sum": "$n"},
            "oldest": {"$min": "$dt"},
        }
        # A literal date, because an index does not cover a comparison with $$NOW.
        wanted = documents.ready_at(await self._mongo.now())
        with self._mongo.answering():
            cursor = await self._batches.aggregate(
                [{"$match": wanted}, {"$group": group}], hint="waiting"
            )
            rows = await cursor.to_list()
        return [
            Waiting(
                jobtype=documents.jobtype_of(row["_id"]),
                batches=row["batches"],
                jobs=row["jobs"],
                oldest=row["oldest"],
            )
            for row in rows
        ]

    async def claim(self, jobtype: JobType, lease_s: float) -> Batch | None:
        return await self._claim(documents.ready_of(jobtype), lease_s)

    async def claim_expired(self, jobtype: JobType, lease_s: float) -> Batch | None:
        return await self._claim(documents.ready_of(jobtype) | documents.window_ended(), lease_s)

    async def _claim(self, eligible: Document, lease_s: float) -> Batch | None:
        with self._mongo.answering():
            found = await self._claims.find_one_and_update(
                eligible,
                documents.to_claimed(self._lock, lease_s),
                sort=_CLAIM_ORDER,
                return_document=ReturnDocument.AFTER,
                hint="claim",
            )
            if found is None:
                return None
        if "data_at" in found:
            found["data"] = await self._blobs.read(found["data_at"])
        return documents.to_batch(found)

    async def renew(self, ids: Sequence[str], lease_s: float) -> set[str]:
        if not ids:
            return set()
        mine = documents.held_by(self._lock, ids)
        with self._mongo.answering():
            await self._batches.update_many(mine, documents.to_renewed(lease_s))
            held = await self._batches.find(mine, {"_id": 1}).to_list()
        return {row["_id"] for row in held}

    # The end of a run.

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Most settlements are one write of one document; one with successors is a transaction.

        Every write may be repeated: one whose answer was lost is recognised as our own.
        """
        single = [one for one in settlements if not one.successors]
        several = [one for one in settlements if one.successors]
        took_effect = await self._settle_single(single)
        ends = await asyncio.gather(*(self._settle_several(one) for one in several))
        took_effect |= {one.fence.id: end for one, end in zip(several, ends, strict=True)}
        for one in settlements:
            if not took_effect[one.fence.id]:
                await self._remove_blocks(one)
        return [took_effect[one.fence.id] for one in settlements]

    async def _settle_single(self, settlements: Sequence[Settlement]) -> dict[str, bool]:
        born = [await self._born(one, one.unstored) for one in settlements if one.unstored]
        there = await self._insert(born)
        # A batch that was unstored when its run ended may be there all the same: by a write whose
        # answer was lost.
        stored = [one for one in settlements if not one.unstored or one.fence.id in there]
        took_effect = dict.fromkeys((document["_id"] for document in born), True)
        return took_effect | await self._update(stored)

    async def _update(self, settlements: Sequence[Settlement]) -> dict[str, bool]:
        if not settlements:
            return {}
        writes = [
            UpdateOne(documents.under(one.fence), await self._change(one)) for one in settlements
        ]
        with self._mongo.answering():
            result = await self._batches.bulk_write(writes, ordered=False)
        if result.matched_count == len(writes):
            return {one.fence.id: True for one in settlements}
        return await self._were_mine(settlements)

    async def _settle_several(self, settlement: Settlement) -> bool:
        """End a batch and insert what follows it, all or nothing."""
        if settlement.unstored:
            raise ValueError(f"batch {settlement.fence.id} must be in the store to be taken apart")
        change = await self._change(settlement)
        name = _successor_block(settlement.fence)
        new = [await self._document(batch, name) for batch in settlement.successors]
        under = documents.under(settlement.fence)

        async def write(session: AsyncClientSession) -> None:
            result = await self._batches.update_one(under, change, session=session)
            if result.matched_count == 0:
                raise _Outdated
            await self._batches.insert_many(new, ordered=False, session=session)

        try:
            await self._mongo.transaction(write)
        except _Outdated:
            with self._mongo.answering():
                # Changes nothing, but waits until a majority has all that came before: an earlier
                # commit of ours, too, if only its answer was lost.
                await self._batches.update_one(under, documents.as_it_is(settlement.fence))
            return (await self._were_mine([settlement]))[settlement.fence.id]
        return True

    async def _were_mine(self, settlements: Sequence[Settlement]) -> dict[str, bool]:
        """Tell outdated fences from writes that had taken effect although no answer came."""
        ids = [one.fence.id for one in settlements]
        with self._mongo.answering():
            found = self._batches.find(documents.settled_by(self._lock, ids), {"gen": 1})
            gens = {row["_id"]: row["gen"] async for row in found}
        return {one.fence.id: gens.get(one.fence.id) == one.fence.gen for one in settlements}

    async def _change(self, settlement: Settlement) -> Document | list[Document]:
        done = settlement.finished
        if done is None:
            return documents.to_free(
                self._lock, settlement.free_after_s, careful=settlement.careful
            )
        return {"$set": await self._end(settlement, done)}

    async def _end(self, settlement: Settlement, done: Finished) -> Document:
        return documents.to_finished(
            done,
            settlement.fence.lock,
            narrowed=settlement.narrowed,
            out_at=await self._blobs.keep(_result_block(settlement.fence), done.out),
        )

    async def _born(self, settlement: Settlement, new: NewBatch) -> Document:
        """The document of a batch that is inserted when it has already ended."""
        done = settlement.finished
        if done is None:
            raise ValueError(f"batch {new.id} is not in the store and has not ended")
        claimed = {"gen": settlement.fence.gen, "ready_dt": new.dt, "claim_dt": new.dt}
        return await self._document(new, "data") | claimed | await self._end(settlement, done)

    async def _remove_blocks(self, settlement: Settlement) -> None:
        """Remove the oversized blocks of a settlement that came to nothing: they are nobody's."""
        done = settlement.finished
        if done and len(done.out) > INLINE_MAX_BYTES:
            await self._blobs.remove(_result_block(settlement.fence))
        for batch in settlement.successors:
            if len(batch.data) > INLINE_MAX_BYTES:
                await self._blobs.remove(f"{batch.id}/{_successor_block(settlement.fence)}")

    # Housekeeping.

    async def fold(self, limit: int) -> int:
        now = await self._mongo.now()
        wanted = documents.to_fold(self._lock, now - _FOLD_OTHERS_AFTER)
        fields = {"tenant": 1, "type": 1, "tally": 1}

        async def fold(session: AsyncClientSession) -> int:
            found = self._batches.find(wanted, fields, session=session).hint("metered").limit(limit)
            rows = await found.to_list()
            if not rows:
                return 0
            ids = {"_id": {"$in": [row["_id"] for row in rows]}}
            await self._batches.update_many(ids, documents.to_folded(), session=session)
            await self._counts.bulk_write(self._sums(rows), ordered=False, session=session)
            return len(rows)

        return await self._mongo.transaction(fold)

    def _sums(self, rows: Sequence[Document]) -> list[UpdateOne]:
        """One addition per jobtype, to a document that only this daemon's slot writes."""
        sums: dict[JobType, Counter[str]] = {}
        for row in rows:
            sums.setdefault(documents.jobtype_of(row), Counter()).update(row["tally"])
        return [
            UpdateOne(
                {"_id": f"{jobtype}/{self._slot}"},
                {
                    "$inc": {name: sum_[name] for name in CODES + METERS},
                    "$setOnInsert": {"tenant": jobtype.tenant, "type": jobtype.type},
                },
                upsert=True,
            )
            for jobtype, sum_ in sums.items()
        ]

    async def sweep(self, limit: int) -> int:
        with self._mongo.answering():
            rows = await self._batches.find(documents.abandoned(), {"_id": 1}).to_list(limit)
            if not rows:
                return 0
            # The filter is repeated: each batch is freed only if it is still abandoned.
            still = documents.abandoned() | {"_id": {"$in": [row["_id"] for row in rows]}}
            result = await self._batches.update_many(still, documents.to_recovered())
        return result.modified_count

    async def purge(self, keep_s: float, limit: int) -> int:
        with self._mongo.answering():
            old = documents.purgeable(await self._mongo.now() - timedelta(seconds=keep_s))
            cursor = self._batches.find(old, {"out_at": 1, "data_at": 1}).limit(limit)
            rows = await cursor.to_list()
            if not rows:
                return 0
            await self._blobs.remove_of(
                [row["_id"] for row in rows if "out_at" in row or "data_at" in row]
            )
            result = await self._batches.delete_many({"_id": {"$in": [r["_id"] for r in rows]}})
        return result.deleted_count


def _result_block(fence: Fence) -> str:
    """Names are of one claim, so that a late daemon cannot touch another's block."""
    return f"{fence.id}/out.{fence.gen}"


def _successor_block(fence: Fence) -> str:
    return f"data.{fence.lock}.{fence.gen}"
