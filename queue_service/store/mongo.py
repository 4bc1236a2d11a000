"""The connection to MongoDB: client, write concern, transactions, the one mapping of its errors.

Knows no collection's meaning; the verbs are in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Self, TypeVar

import pymongo
from bson.codec_options import CodecOptions
from pymongo import AsyncMongoClient, IndexModel
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    CursorNotFound,
    ExecutionTimeout,
    PyMongoError,
    WTimeoutError,
)
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from queue_service.errors import StoreUnavailable
from queue_service.store.documents import INDEXES, Document

_T = TypeVar("_T")
_AWARE: CodecOptions[Document] = CodecOptions(tz_aware=True)
_PASSING = ("TransientTransactionError", "UnknownTransactionCommitResult", "RetryableWriteError")


class UnusableStore(Exception):
    """A MongoDB that answers but cannot keep Hearth's promises; the message says why."""


def _reason(error: PyMongoError) -> str:
    return str(error).split(", Timeout:")[0][:200]


def _is_away(error: PyMongoError) -> bool:
    """Whether the same call may succeed later; it is then unknown whether it had its effect."""
    if isinstance(error, BulkWriteError):
        # What no majority has yet may still be rolled back.
        return bool(error.details["writeConcernErrors"])
    away = (ConnectionFailure, CursorNotFound, ExecutionTimeout, WTimeoutError)
    return isinstance(error, away) or error.timeout or any(map(error.has_error_label, _PASSING))


class Mongo:
    """One client. Writes are majority-acknowledged and retryable, reads see the majority.

    `answers` is whether MongoDB did when it was last asked anything.
    """

    def __init__(self, uri: str, database: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.client: AsyncMongoClient[Document] = AsyncMongoClient(
            uri,
            tz_aware=True,
            timeoutMS=round(timeout_s * 1000),
            serverSelectionTimeoutMS=round(timeout_s * 1000),
            retryWrites=True,
            appname="hearth",
        )
        self.database = self.client.get_database(
            database,
            codec_options=_AWARE,
            write_concern=WriteConcern("majority"),
            read_concern=ReadConcern("majority"),
        )
        self.answers = True
        self._orphans: list[Mapping[str, Any]] = []

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Turn "MongoDB does not answer" into StoreUnavailable; let real mistakes through."""
        try:
            yield
        except PyMongoError as error:
            if _is_away(error):
                self.answers = False
                raise StoreUnavailable(f"MongoDB does not answer: {_reason(error)}") from error
            raise
        self.answers = True

    def collection(self, name: str) -> AsyncCollection[Document]:
        return self.database[name]

    async def prepare(self) -> None:
        """Check that the server can keep the promises, and make the indexes."""
        with self.answering():
            hello = await self.client.admin.command("hello")
            if "setName" not in hello and hello.get("msg") != "isdbgrid":
                raise UnusableStore(
                    "this MongoDB is a standalone server; Hearth needs a replica set (one member "
                    "is enough) for majority writes and transactions"
                )
            await self.collection("batches").create_indexes(INDEXES)
            await self.collection("handlers").create_indexes(
                [IndexModel([("tenant", 1), ("name", 1), ("version", -1)], unique=True)]
            )
            await self.collection("counts").create_indexes([IndexModel([("tenant", 1)])])
            await self.collection("keys").create_indexes([IndexModel([("tenant", 1)])])
            # A mark outlives its journal segment by far, so that an old journal that turns up again
            # is still known to be stored.
            await self.collection("marks").create_indexes(
                [IndexModel([("at", 1)], expireAfterSeconds=90 * 86400)]
            )

    async def now(self) -> datetime:
        """The server's clock, by which all leases are judged."""
        with self.answering():
            # A command's answer does not follow the client's own codec options.
            hello = await self.client.admin.command("hello", codec_options=_AWARE)
        moment: datetime = hello["localTime"]
        return moment

    async def transaction(self, work: Callable[[AsyncClientSession], Awaitable[_T]]) -> _T:
        """Run `work` all or nothing; it may be called again and must write through the session."""
        # Without a bound of ours the driver would go on trying for two minutes.
        with self.answering(), pymongo.timeout(self._timeout_s):
            await self._end_orphans()
            async with self.client.start_session() as session:
                try:
                    return await session.with_transaction(
                        work, ReadConcern("snapshot"), WriteConcern("majority")
                    )
                except PyMongoError as error:
                    if _is_away(error):
                        self._orphans.append(session.session_id)
                    raise

    async def _end_orphans(self) -> None:
        """End transactions that we gave up without the server hearing of it.

        It would keep their documents from everybody, us included, for another minute.
        """
        if self._orphans:
            await self.client.admin.command({"killSessions": self._orphans})
            self._orphans = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.client.close()
