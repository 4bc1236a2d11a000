"""One daemon for all tests that need nothing special of it; every test is a tenant of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest
import structlog
from pymongo import AsyncMongoClient

from .support import Client, Hearth, serving, settings_of


@pytest.fixture(scope="package", autouse=True)
def _plain_log() -> Iterator[None]:
    """Logs as JSON: structlog's own default draws every trace with all its variables."""
    before = structlog.get_config()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ]
    )
    yield
    structlog.configure(**before)


@pytest.fixture(scope="package")
async def hearth(mongod: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hearth]:
    """A daemon shared by the tests of this directory."""
    database = f"service_{uuid4().hex[:12]}"
    settings = settings_of(tmp_path_factory.mktemp("hearth"), mongod, database)
    async with serving(settings) as running:
        yield running
    async with AsyncMongoClient[dict[str, object]](mongod) as client:
        await client.drop_database(database)


@pytest.fixture
async def acme(hearth: Hearth) -> Client:
    """A tenant that nobody else uses."""
    return await hearth.tenant()


@pytest.fixture
async def work(acme: Client) -> Client:
    """A tenant that has uploaded `work`, the handler whose payload picks its behaviour."""
    await acme.upload("work")
    return acme
