"""What tests of several rooms share: one real mongod for the session, a fresh database for each."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from pymongo import AsyncMongoClient

from queue_service.store.embedded import (
    EmbeddedMongod,
    EmbeddedMongoUnavailable,
    EmbeddedSettings,
)


@pytest.fixture(scope="session")
async def mongod(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The URI of a replica set that lives as long as the session.

    Without a usable mongod its tests are skipped on a laptop and fail where CI is set.
    """
    settings = EmbeddedSettings(data=tmp_path_factory.mktemp("session"))
    try:
        server = await EmbeddedMongod(settings).__aenter__()
    except EmbeddedMongoUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    try:
        yield server.uri
    finally:
        await server.__aexit__()


@pytest.fixture(scope="session")
async def _cleaner(mongod: str) -> AsyncIterator[AsyncMongoClient[dict[str, Any]]]:
    async with AsyncMongoClient[dict[str, Any]](mongod) as client:
        yield client


@pytest.fixture
async def database(_cleaner: AsyncMongoClient[dict[str, Any]]) -> AsyncIterator[str]:
    """The name of a database of this test's own, dropped afterwards."""
    name = f"test_{uuid4().hex[:12]}"
    yield name
    await _cleaner.drop_database(name)
