"""Blocks too large for a document, kept in GridFS under names derived from their batch.

A file is written before the document that names it, so a crash in between leaves a file that
nobody names; the purge of the batch removes whatever goes by its name.
"""

from __future__ import annotations

import re

from gridfs import AsyncGridFSBucket, NoFile

from queue_service.errors import NotFound
from queue_service.store.documents import Document
from queue_service.store.mongo import Mongo

# A document may have 16 MiB in all, and a batch has two blocks.
INLINE_MAX_BYTES = 6 << 20


class Blobs:
    """Named blocks of any size."""

    def __init__(self, mongo: Mongo) -> None:
        self._mongo = mongo
        self._files = AsyncGridFSBucket(mongo.database, "blocks")

    async def keep(self, name: str, block: bytes) -> str | None:
        """Store an oversized block and answer its name; None when it fits into a document."""
        if len(block) <= INLINE_MAX_BYTES:
            return None
        with self._mongo.answering():
            await self._files.upload_from_stream(name, block)
        return name

    async def read(self, name: str) -> bytes:
        try:
            with self._mongo.answering():
                stream = await self._files.open_download_stream_by_name(name)
                return bytes(await stream.read())
        except NoFile:
            raise NotFound("this has just been purged") from None

    async def remove(self, name: str) -> None:
        """Remove one block, if there is one of this name."""
        await self._remove({"filename": name})

    async def remove_of(self, batch_ids: list[str]) -> None:
        """Remove all blocks of these batches."""
        if batch_ids:
            prefixes = "|".join(re.escape(batch_id) for batch_id in batch_ids)
            await self._remove({"filename": {"$regex": f"^(?:{prefixes})/"}})

    async def _remove(self, wanted: Document) -> None:
        with self._mongo.answering():
            async for file in self._files.find(wanted):
                await self._files.delete(file._id)
