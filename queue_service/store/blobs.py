"""Blocks too large for a document, kept in GridFS under names derived from their batch.

A file is written before the document that names it, so a crash in between leaves a file that
nobody names; writing it again replaces it, and the purge of the batch removes it.
"""

from __future__ import annotations

import re

from gridfs import AsyncGridFSBucket

from queue_service.store.mongo import Mongo

# A document may have 16 MiB in all, and a batch has two blocks.
INLINE_MAX_BYTES = 6 << 20


class Blobs:
    """Named blocks of any size."""

    def __init__(self, mongo: Mongo) -> None:
        self._files = AsyncGridFSBucket(mongo.database, "blocks")

    async def keep(self, name: str, block: bytes) -> str | None:
        """Store an oversized block and answer its name; None when it fits into a document."""
        if len(block) <= INLINE_MAX_BYTES:
            return None
        await self._files.upload_from_stream(name, block)
        return name

    async def read(self, name: str) -> bytes:
        stream = await self._files.open_download_stream_by_name(name)
        return bytes(await stream.read())

    async def remove(self, batch_ids: list[str]) -> None:
        """Remove all blocks of these batches."""
        if not batch_ids:
            return
        prefixes = "|".join(re.escape(batch_id) for batch_id in batch_ids)
        async for file in self._files.find({"filename": {"$regex": f"^(?:{prefixes})/"}}):
            await self._files.delete(file._id)
