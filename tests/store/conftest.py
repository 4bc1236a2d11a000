"""The store as the tests of this room see it: one connection, two daemons, one reader."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from queue_service.store.batches import MongoBatches
from queue_service.store.mongo import Mongo
from queue_service.store.results import MongoResults
from tests.store.support import daemon, empty


@pytest.fixture(scope="session")
async def _prepared(mongod: str) -> str:
    """A database with all indexes; making and dropping one takes longer than most tests do."""
    async with Mongo(mongod, "store", timeout_s=20.0) as connected:
        await connected.prepare()
    return "store"


@pytest.fixture
async def mongo(mongod: str, _prepared: str) -> AsyncIterator[Mongo]:
    """A connection to a prepared database that is empty, and emptied afterwards."""
    async with Mongo(mongod, _prepared, timeout_s=20.0) as connected:
        yield connected
        await empty(connected)


@pytest.fixture
def batches(mongo: Mongo) -> MongoBatches:
    """The batches as the daemon under test has them."""
    return daemon(mongo, slot=1)


@pytest.fixture
def rival(mongo: Mongo) -> MongoBatches:
    """The batches as another daemon has them."""
    return daemon(mongo, slot=2)


@pytest.fixture
def results(mongo: Mongo) -> MongoResults:
    return MongoResults(mongo)
