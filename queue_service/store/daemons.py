"""Sysid leases in MongoDB: who is a daemon right now.

A slot is a small number that is used again; its epoch grows with every reservation, so the sysid
(`s3.17`) is new at each start. Lease ends are judged by the server's clock.
"""

from __future__ import annotations

from collections.abc import Mapping

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from queue_service.store.base import Sysid
from queue_service.store.documents import Document
from queue_service.store.mongo import Mongo


class MongoDaemons:
    """`DaemonRegistry`."""

    def __init__(self, mongo: Mongo) -> None:
        self._mongo = mongo
        self._daemons = mongo.collection("daemons")

    async def reserve(self, info: Mapping[str, str], lease_s: float) -> Sysid:
        while True:
            sysid = await self._take_lapsed(info, lease_s) or await self._take_new(info, lease_s)
            if sysid:
                return sysid

    async def _take_lapsed(self, info: Mapping[str, str], lease_s: float) -> Sysid | None:
        with self._mongo.answering():
            found = await self._daemons.find_one_and_update(
                {"$expr": {"$lte": ["$dt", "$$NOW"]}},
                [
                    {
                        "$set": {
                            "epoch": {"$add": ["$epoch", 1]},
                            "dt": _lease_end(lease_s),
                            "released": False,
                            "info": {"$literal": dict(info)},
                        }
                    }
                ],
                sort=[("_id", 1)],
                return_document=ReturnDocument.AFTER,
            )
        return Sysid(slot=found["_id"], epoch=found["epoch"]) if found else None

    async def _take_new(self, info: Mapping[str, str], lease_s: float) -> Sysid | None:
        """None when another daemon took the same new slot first."""
        with self._mongo.answering():
            last = await self._daemons.find_one({}, sort=[("_id", -1)])
            slot = int(last["_id"]) + 1 if last else 1
            try:
                # An upsert, because only updates can use the server's clock.
                result = await self._daemons.update_one(
                    {"_id": slot, "epoch": {"$exists": False}},
                    [
                        {
                            "$set": {
                                "epoch": 1,
                                "dt": _lease_end(lease_s),
                                "released": False,
                                "info": {"$literal": dict(info)},
                            }
                        }
                    ],
                    upsert=True,
                )
            except DuplicateKeyError:
                return None
        return Sysid(slot=slot, epoch=1) if result.upserted_id is not None else None

    async def renew_sysid(self, sysid: Sysid, lease_s: float) -> bool:
        with self._mongo.answering():
            result = await self._daemons.update_one(
                _held_by(sysid), [{"$set": {"dt": _lease_end(lease_s)}}]
            )
        return result.matched_count == 1

    async def release(self, sysid: Sysid) -> None:
        with self._mongo.answering():
            given_back = {"dt": "$$NOW", "released": True}
            await self._daemons.update_one(_held_by(sysid), [{"$set": given_back}])


def _held_by(sysid: Sysid) -> Document:
    return {"_id": sysid.slot, "epoch": sysid.epoch, "released": False}


def _lease_end(lease_s: float) -> Document:
    return {"$add": ["$$NOW", round(lease_s * 1000)]}
