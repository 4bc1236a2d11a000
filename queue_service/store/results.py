"""What tenants read out of MongoDB: jobs by id, results, the scoreboard. Writes nothing.

Every filter carries the tenant.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from queue_service import block
from queue_service.batch import Finished, State, state_of
from queue_service.store import documents
from queue_service.store.base import Seen, TypeCounts, Wanted
from queue_service.store.blobs import Blobs
from queue_service.store.documents import CODES, METERS, Document
from queue_service.store.mongo import Mongo

_RECENT = timedelta(seconds=60)
_RECENT_MAX = 2000
_NO_DATA = {"data": 0, "log": 0}
_NO_BLOCKS = {"data": 0, "log": 0, "out": 0}


class MongoResults:
    """`ResultStore`."""

    def __init__(self, mongo: Mongo) -> None:
        self._mongo = mongo
        self._batches = mongo.collection("batches")
        self._counts = mongo.collection("counts")
        self._blobs = Blobs(mongo)

    async def job(self, tenant: str, post: str, line: int) -> list[tuple[Seen, bytes]]:
        with self._mongo.answering():
            cursor = self._batches.find(documents.holds_job(tenant, post, line))
            rows = await cursor.sort("attempt", -1).to_list()
            now = await self._mongo.now()
            return [
                (await self._seen(row, now), await self._payload(row, post, line)) for row in rows
            ]

    async def _payload(self, row: Document, post: str, line: int) -> bytes:
        data: bytes = await self._blobs.read(row["data_at"]) if "data_at" in row else row["data"]
        start = block.offset_of(data, _index(row, post, line))
        return data[start : data.index(b"\n", start)]

    async def _seen(self, row: Document, now: datetime) -> Seen:
        state = state_of(row["lock"], row["dt"], now)
        return Seen(
            id=row["_id"],
            state=state,
            jobtype=documents.jobtype_of(row),
            spans=documents.to_spans(row["spans"]),
            attempt=row["attempt"],
            priority=row["prio"],
            dt=row["dt"],
            create_dt=row["create_dt"],
            finished=await self._finished(row) if state is State.DONE else None,
        )

    async def _finished(self, row: Document) -> Finished:
        if "out_at" in row and "out" in row:
            row["out"] = await self._blobs.read(row["out_at"])
        return documents.to_done(row)

    async def outline(self, tenant: str, post: str) -> list[Finished]:
        wanted = documents.done_of(tenant) | {"spans.p": post}
        with self._mongo.answering():
            rows = await self._batches.find(wanted, _NO_BLOCKS).to_list()
        return [documents.to_done(row) for row in rows]

    async def finished(self, tenant: str, batch_id: str) -> Finished | None:
        wanted = documents.done_of(tenant) | {"_id": batch_id}
        with self._mongo.answering():
            row = await self._batches.find_one(wanted, _NO_DATA)
            return await self._finished(row) if row else None

    async def known(self, tenant: str, post: str) -> bool:
        with self._mongo.answering():
            found = await self._batches.find_one({"tenant": tenant, "spans.p": post}, {"_id": 1})
        return found is not None

    async def results(
        self,
        tenant: str,
        *,
        type_: str | None,
        codes: Collection[str],
        since: tuple[datetime, str] | None,
    ) -> AsyncIterator[Finished]:
        wanted = documents.done_of(tenant)
        if type_ is not None:
            wanted["type"] = type_
        if codes:
            wanted["codes"] = {"$in": list(codes)}
        if since is not None:
            moment, batch_id = since
            wanted["$or"] = [
                {"done_dt": {"$gt": moment}},
                {"done_dt": moment, "_id": {"$gte": batch_id}},
            ]
        with self._mongo.answering():
            cursor = self._batches.find(wanted, _NO_DATA, batch_size=20).hint("results")
            async for row in cursor.sort([("done_dt", 1), ("_id", 1)]):
                yield await self._finished(row)

    async def batches(
        self, tenant: str, wanted: Wanted, until: str | None, limit: int
    ) -> list[Seen]:
        where: Document = {"tenant": tenant}
        if wanted.type is not None:
            where["type"] = wanted.type
        if wanted.codes:
            where["codes"] = {"$in": list(wanted.codes)}
        if until is not None:
            where["_id"] = {"$lte": until}
        with self._mongo.answering():
            now = await self._mongo.now()
            where |= documents.in_state(wanted.state, now)
            cursor = self._batches.find(where, _NO_BLOCKS).sort("_id", -1).limit(limit)
            return [await self._seen(row, now) async for row in cursor]

    async def scoreboard(self, tenant: str) -> list[TypeCounts]:
        """One snapshot for all parts, so that a job on the move is counted exactly once."""
        board = _Board()
        with self._mongo.answering():
            async with self._mongo.client.start_session(snapshot=True) as session:
                for index, pipeline in documents.live_jobs(tenant).items():
                    cursor = await self._batches.aggregate(pipeline, hint=index, session=session)
                    async for row in cursor:
                        board.add(row["_id"]["type"], row["_id"]["state"], row["jobs"])
                unfolded = await self._batches.aggregate(
                    documents.unfolded_counts(tenant), hint="metered", session=session
                )
                async for row in unfolded:
                    board.add_codes(row["_id"], row)
                async for row in self._counts.find({"tenant": tenant}, session=session):
                    board.add_codes(row["type"], row)
            since = await self._mongo.now() - _RECENT
            recent = documents.done_of(tenant) | {"done_dt": {"$gt": since}}
            fields = {"type": 1, "n": 1, "run_s": 1, "wait_s": 1}
            found = self._batches.find(recent, fields).sort("done_dt", -1).limit(_RECENT_MAX)
            async for row in found:
                board.observe(row)
        return board.rows()


class _Board:
    """Collects the scoreboard's parts by type."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}
        self._recent: dict[str, list[Mapping[str, Any]]] = {}

    def add(self, type_: str, name: str, jobs: int) -> None:
        row = self._counts.setdefault(type_, {})
        row[name] = row.get(name, 0) + jobs

    def add_codes(self, type_: str, row: Mapping[str, Any]) -> None:
        for name in CODES + METERS:
            # What was folded before times were metered has none.
            self.add(type_, name, row.get(name, 0))

    def observe(self, row: Mapping[str, Any]) -> None:
        self._recent.setdefault(row["type"], []).append(row)

    def rows(self) -> list[TypeCounts]:
        return [self._row(type_) for type_ in sorted(self._counts)]

    def _row(self, type_: str) -> TypeCounts:
        counts, recent = self._counts[type_], self._recent.get(type_, [])
        return TypeCounts(
            type=type_,
            waiting=counts.get("waiting", 0),
            deferred=counts.get("deferred", 0),
            running=counts.get("running", 0),
            codes={code: counts.get(code, 0) for code in CODES},
            used_s={name.removesuffix("_us"): counts.get(name, 0) / 1e6 for name in METERS},
            run_s=[row["run_s"] for row in recent],
            wait_s=[row["wait_s"] for row in recent],
            jobs_last_minute=sum(row["n"] for row in recent),
        )


def _index(row: Document, post: str, line: int) -> int:
    """Which line of the batch a post's line is."""
    base = 0
    for span in row["spans"]:
        if span["p"] == post and span["f"] <= line < span["e"]:
            return base + int(line - span["f"])
        base += span["e"] - span["f"]
    raise LookupError(f"{row['_id']} does not hold line {line} of {post}")
