"""The handler cache: fresh for a moment, forgotten on upload, trusted while the store is away."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.definition import Definition, Handler
from handlers.names import JobType
from queue_service.errors import StoreUnavailable
from queue_service.handler_cache import HandlerCache

ACME = JobType("acme", "resize")


class Store:
    def __init__(self) -> None:
        self.newest = 1
        self.asked: list[tuple[str, str, int | None]] = []
        self.away = False

    async def get(self, tenant: str, name: str, version: int | None = None) -> Handler | None:
        self.asked.append((tenant, name, version))
        if self.away:
            raise StoreUnavailable("away")
        if not self.newest:
            return None
        definition = Definition(lang="python", body="return 1")
        return Handler(
            tenant=tenant, name=name, version=version or self.newest, definition=definition
        )


def cache_on(store: Store, ttl_s: float) -> HandlerCache:
    whole: Any = store
    return HandlerCache(whole, ttl_s)


async def version(cache: HandlerCache, jobtype: JobType = ACME) -> int | None:
    found = await cache.find(jobtype)
    return found.version if found else None


async def test_the_store_is_asked_once_in_a_while() -> None:
    store = Store()
    cache = cache_on(store, ttl_s=3600)
    assert [await version(cache) for _ in range(3)] == [1, 1, 1]
    assert len(store.asked) == 1


async def test_an_upload_here_holds_at_once_for_pinned_and_unpinned_types() -> None:
    store = Store()
    cache = cache_on(store, ttl_s=3600)
    await version(cache)
    await version(cache, JobType("acme", "resize@1"))
    await version(cache, JobType("acme", "crop"))
    store.newest = 2
    cache.forget("acme", "resize")
    assert await version(cache) == 2
    assert await version(cache, JobType("acme", "resize@1")) == 1
    assert await version(cache, JobType("acme", "crop")) == 1  # was not forgotten
    assert store.asked.count(("acme", "resize", 1)) == 2


async def test_an_upload_elsewhere_holds_after_the_time_is_over() -> None:
    store = Store()
    cache = cache_on(store, ttl_s=0)
    assert await version(cache) == 1
    store.newest = 2
    assert await version(cache) == 2


async def test_what_was_known_holds_while_the_store_is_away() -> None:
    store = Store()
    cache = cache_on(store, ttl_s=0)
    assert await version(cache) == 1
    store.away = True
    assert await version(cache) == 1
    with pytest.raises(StoreUnavailable):
        await version(cache, JobType("acme", "never-seen"))


async def test_it_is_told_apart_whether_a_handler_is_known() -> None:
    store = Store()
    cache = cache_on(store, ttl_s=3600)
    assert not cache.is_known(ACME)
    await cache.find(ACME)
    assert cache.is_known(ACME)
    store.newest = 0
    cache.forget("acme", "resize")
    await cache.find(ACME)
    assert not cache.is_known(ACME)
