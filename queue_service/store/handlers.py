"""Handlers in MongoDB: every version a document of its own, never changed once written.

Deleting writes a tombstone as the newest version, so that version numbers are never used again.
While it is the newest, no version is found, pinned or not.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from datetime import datetime

from bson.objectid import ObjectId
from pymongo.errors import DuplicateKeyError

from handlers.definition import Definition, Handler
from queue_service.store.documents import Document
from queue_service.store.mongo import Mongo

_FIELDS = tuple(field.name for field in fields(Definition))


class MongoHandlers:
    """`HandlerStore`."""

    def __init__(self, mongo: Mongo) -> None:
        self._mongo = mongo
        self._handlers = mongo.collection("handlers")

    async def put(self, tenant: str, name: str, definition: Definition) -> tuple[Handler, bool]:
        digest = definition.digest()
        while True:
            newest = await self._newest(tenant, name)
            if newest and not newest["deleted"] and newest["digest"] == digest:
                return _to_handler(newest), False
            version = newest["version"] + 1 if newest else 1
            document = {
                "_id": ObjectId(),
                "tenant": tenant,
                "name": name,
                "version": version,
                "deleted": False,
                "digest": digest,
                "data": asdict(definition),
            }
            if await self._insert(document):
                return _to_handler(document), True

    async def _insert(self, document: Document) -> bool:
        """False when somebody else took the version number: the caller looks again."""
        with self._mongo.answering():
            try:
                await self._handlers.insert_one(document)
            except DuplicateKeyError:
                return False
        return True

    async def _newest(self, tenant: str, name: str) -> Document | None:
        with self._mongo.answering():
            return await self._handlers.find_one(
                {"tenant": tenant, "name": name}, sort=[("version", -1)]
            )

    async def get(self, tenant: str, name: str, version: int | None = None) -> Handler | None:
        newest = await self._newest(tenant, name)
        if newest is None or newest["deleted"]:
            return None
        if version is None or version == newest["version"]:
            return _to_handler(newest)
        with self._mongo.answering():
            found = await self._handlers.find_one(
                {"tenant": tenant, "name": name, "version": version, "deleted": False}
            )
        return _to_handler(found) if found else None

    async def versions(self, tenant: str, name: str) -> list[tuple[Handler, datetime]]:
        with self._mongo.answering():
            cursor = self._handlers.find({"tenant": tenant, "name": name, "deleted": False})
            rows = await cursor.sort("version", -1).to_list()
        return [(_to_handler(row), row["_id"].generation_time) for row in rows]

    async def names(self, tenant: str) -> list[tuple[Handler, datetime]]:
        newest: list[Document] = [
            {"$match": {"tenant": tenant}},
            {"$sort": {"tenant": 1, "name": 1, "version": -1}},
            {"$group": {"_id": "$name", "newest": {"$first": "$$ROOT"}}},
            {"$replaceWith": "$newest"},
            {"$match": {"deleted": False}},
            {"$sort": {"name": 1}},
        ]
        with self._mongo.answering():
            rows = await (await self._handlers.aggregate(newest)).to_list()
        return [(_to_handler(row), row["_id"].generation_time) for row in rows]

    async def delete(self, tenant: str, name: str) -> bool:
        while True:
            newest = await self._newest(tenant, name)
            if newest is None or newest["deleted"]:
                return False
            tombstone = {
                "_id": ObjectId(),
                "tenant": tenant,
                "name": name,
                "version": newest["version"] + 1,
                "deleted": True,
            }
            if await self._insert(tombstone):
                return True

    async def clean(self, tenant: str, name: str, version: int) -> bool:
        """Remove one old version for good; the newest one stays (delete undefines that)."""
        newest = await self._newest(tenant, name)
        if newest is None or newest["version"] == version:
            return False
        with self._mongo.answering():
            result = await self._handlers.delete_one(
                {"tenant": tenant, "name": name, "version": version, "deleted": False}
            )
        return result.deleted_count == 1


def _to_handler(document: Document) -> Handler:
    data = document["data"]
    return Handler(
        tenant=document["tenant"],
        name=document["name"],
        version=document["version"],
        definition=Definition(**{name: data[name] for name in _FIELDS if name in data}),
    )
