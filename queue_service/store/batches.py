"""The life of batches in MongoDB: add, waiting, claim, renew, settle, sweep, purge.

One method per verb; filters and updates have names in `documents`. Does not decide anything:
what to claim is the scheduler's business, what to write at the end `settle`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from pymongo import ReturnDocument, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import BulkWriteError

from handlers.names import JobType
from queue_service.batch import Batch, Finished, NewBatch, Settlement, codes_of
from queue_service.store import documents
from queue_service.store.base import Mark, MarkMoved, Sysid, Waiting
from queue_service.store.blobs import Blobs
from queue_service.store.documents import Document
from queue_service.store.mongo import Mongo, answering

_DUPLICATE = 11000
_CLAIM_ORDER = [("prio", -1), ("dt", 1)]


class _Outdated(Exception):
    """At least one fence of a group matched nothing."""


class MongoBatches:
    """`BatchStore` for one daemon, identified by its sysid."""

    def __init__(self, mongo: Mongo, sysid: Sysid, *, archive: bool) -> None:
        self._mongo = mongo
        self._batches = mongo.collection("batches")
        self._counts = mongo.collection("counts")
        self._marks = mongo.collection("marks")
        self._blobs = Blobs(mongo)
        self._slot = sysid.slot
        self._lock = str(sysid)
        self._archive = archive

    async def add(self, batches: Sequence[NewBatch], marks: Sequence[Mark]) -> None:
        new = await self._documents(batches)
        moves = [_move(mark) for mark in marks]

        async def insert(session: AsyncClientSession) -> None:
            if moves:
                await self._move_all(moves, session)
            if new:
                await self._batches.insert_many(new, ordered=False, session=session)

        await self._mongo.transaction(insert)

    async def _documents(self, batches: Iterable[NewBatch]) -> list[Document]:
        with answering():
            return [
                documents.from_new(b, data_at=await self._blobs.keep(f"{b.id}/data", b.data))
                for b in batches
            ]

    async def _move_all(self, moves: list[UpdateOne], session: AsyncClientSession) -> None:
        try:
            result = await self._marks.bulk_write(moves, ordered=False, session=session)
        except BulkWriteError as error:
            if any(problem["code"] == _DUPLICATE for problem in error.details["writeErrors"]):
                raise MarkMoved from None
            raise
        if result.matched_count + result.upserted_count != len(moves):
            raise MarkMoved

    async def mark(self, segment: str) -> int:
        with answering():
            found = await self._marks.find_one({"_id": segment})
        return int(found["end"]) if found else 0

    async def waiting(self) -> list[Waiting]:
        group = {
            "_id": {"tenant": "$tenant", "type": "$type"},
            "batches": {"$sum": 1},
            "jobs": {"$sum": "$n"},
            "oldest": {"$min": "$dt"},
        }
        with answering():
            cursor = await self._batches.aggregate(
                [{"$match": documents.ready()}, {"$group": group}], hint="waiting"
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
        with answering():
            found = await self._batches.find_one_and_update(
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
        with answering():
            await self._batches.update_many(mine, documents.to_renewed(lease_s))
            held = await self._batches.find(mine, {"_id": 1}).to_list()
        return {row["_id"] for row in held}

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        try:
            await self._settle_together(settlements)
        except _Outdated:
            if len(settlements) == 1:
                return [await self._was_mine(settlements[0])]
            # One outdated fence spoils the group; alone, each finds out for itself.
            return [(await self.settle([one]))[0] for one in settlements]
        return [True] * len(settlements)

    async def _settle_together(self, settlements: Sequence[Settlement]) -> None:
        with answering():
            changes = [await self._change(settlement) for settlement in settlements]
        writes = [
            UpdateOne(documents.under(settlement.fence), change)
            for settlement, change in zip(settlements, changes, strict=True)
        ]
        finished = [s.finished for s in settlements if s.finished]
        new = await self._documents(b for s in settlements for b in s.successors)
        counts = self._count(finished)

        async def write(session: AsyncClientSession) -> None:
            result = await self._batches.bulk_write(writes, ordered=False, session=session)
            if result.matched_count != len(writes):
                raise _Outdated
            if new:
                await self._batches.insert_many(new, ordered=False, session=session)
            if counts:
                await self._counts.bulk_write(counts, ordered=False, session=session)
            if not self._archive and finished:
                ids = [done.id for done in finished]
                await self._batches.delete_many({"_id": {"$in": ids}}, session=session)

        await self._mongo.transaction(write)

    async def _change(self, settlement: Settlement) -> Document | list[Document]:
        done = settlement.finished
        if done is None:
            return documents.to_free(settlement.free_after_s, careful=settlement.careful)
        name = f"{done.id}/out.{settlement.fence.gen}"
        return documents.to_finished(
            done,
            settlement.fence.lock,
            narrowed=settlement.narrowed,
            out_at=await self._blobs.keep(name, done.out),
        )

    def _count(self, finished: Sequence[Finished]) -> list[UpdateOne]:
        """Counts per jobtype and code, in documents that only this daemon's slot writes.

        They change in the transaction that ends the attempts they count, so they are exact after
        a crash; and no two daemons meet in one document.
        """
        sums: dict[JobType, Counter[str]] = {}
        for done in finished:
            sums.setdefault(done.jobtype, Counter()).update(codes_of(done))
        updates = []
        for jobtype, codes in sums.items():
            key = {"_id": f"{jobtype}/{self._slot}"}
            owner: dict[str, Any] = {"tenant": jobtype.tenant, "type": jobtype.type}
            updates.append(UpdateOne(key, {"$inc": dict(codes), "$setOnInsert": owner}, True))
        return updates

    async def _was_mine(self, settlement: Settlement) -> bool:
        """Tell an outdated fence from a commit whose answer was lost."""
        with answering():
            found = await self._batches.find_one(
                documents.finished_by(settlement.fence), {"_id": 1}
            )
        return found is not None

    async def sweep(self, limit: int) -> int:
        with answering():
            rows = await self._batches.find(documents.abandoned(), {"_id": 1}).to_list(limit)
            if not rows:
                return 0
            # The filter is repeated: each batch is freed only if it is still abandoned.
            still = documents.abandoned() | {"_id": {"$in": [row["_id"] for row in rows]}}
            result = await self._batches.update_many(still, documents.to_recovered())
        return result.modified_count

    async def purge(self, keep_s: float, limit: int) -> int:
        with answering():
            old = documents.done_before(await self._mongo.now() - timedelta(seconds=keep_s))
            cursor = self._batches.find(old, {"out_at": 1, "data_at": 1}).limit(limit)
            rows = await cursor.to_list()
            if not rows:
                return 0
            await self._blobs.remove([r["_id"] for r in rows if "out_at" in r or "data_at" in r])
            result = await self._batches.delete_many({"_id": {"$in": [r["_id"] for r in rows]}})
        return result.deleted_count


def _move(mark: Mark) -> UpdateOne:
    """Move a mark, or fail: the upsert of a segment's first mark collides if there is one."""
    expected: Any = mark.start or {"$exists": False}
    change = {"$set": {"end": mark.end}, "$currentDate": {"at": True}}
    return UpdateOne({"_id": mark.segment, "end": expected}, change, upsert=mark.start == 0)
