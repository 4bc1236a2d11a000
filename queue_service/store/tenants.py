"""Tenants and the digests of their keys in MongoDB. Makes no keys and checks no secrets."""

from __future__ import annotations

from datetime import UTC, datetime

from bson.binary import Binary
from pymongo.errors import DuplicateKeyError

from queue_service.store.base import Key
from queue_service.store.documents import Document
from queue_service.store.mongo import Mongo


class MongoTenants:
    """`TenantStore`."""

    def __init__(self, mongo: Mongo) -> None:
        self._mongo = mongo
        self._tenants = mongo.collection("tenants")
        self._keys = mongo.collection("keys")

    async def create(self, tenant: str, now: datetime) -> bool:
        with self._mongo.answering():
            try:
                await self._tenants.insert_one({"_id": tenant, "created": now})
            except DuplicateKeyError:
                return False
        return True

    async def exists(self, tenant: str) -> bool:
        with self._mongo.answering():
            return await self._tenants.find_one({"_id": tenant}, {"_id": 1}) is not None

    async def all(self) -> list[tuple[str, datetime]]:
        with self._mongo.answering():
            rows = await self._tenants.find().sort("_id", 1).to_list()
        return [(row["_id"], row["created"]) for row in rows]

    async def delete(self, tenant: str) -> bool:
        with self._mongo.answering():
            # Keys first: a half-done deletion must not leave keys that open nothing visible. And
            # once more: one may have been added meanwhile.
            await self._keys.delete_many({"tenant": tenant})
            result = await self._tenants.delete_one({"_id": tenant})
            await self._keys.delete_many({"tenant": tenant})
        return result.deleted_count == 1

    async def add_key(self, key: Key) -> bool:
        if not await self.exists(key.tenant):
            return False
        document = {
            "_id": key.id,
            "tenant": key.tenant,
            "digest": Binary(key.digest),
            "created": key.created,
        }
        with self._mongo.answering():
            try:
                await self._keys.insert_one(document)
            except DuplicateKeyError:
                found = await self.find_key(key.id)
                if found is None or found.digest != key.digest:
                    raise
        return True

    async def revoke_key(self, tenant: str, key_id: str) -> bool:
        with self._mongo.answering():
            result = await self._keys.delete_one({"_id": key_id, "tenant": tenant})
        return result.deleted_count == 1

    async def keys(self, tenant: str) -> list[Key]:
        with self._mongo.answering():
            rows = await self._keys.find({"tenant": tenant}).sort("created", 1).to_list()
        return [_to_key(row) for row in rows]

    async def find_key(self, key_id: str) -> Key | None:
        with self._mongo.answering():
            found = await self._keys.find_one({"_id": key_id})
        return _to_key(found) if found else None


def _to_key(document: Document) -> Key:
    return Key(
        id=document["_id"],
        digest=bytes(document["digest"]),
        tenant=document["tenant"],
        created=document["created"].astimezone(UTC),
    )
