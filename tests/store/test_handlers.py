"""Handlers: versions that only grow, of which the newest counts and the old ones can be had."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from handlers.definition import Definition
from queue_service.store.handlers import MongoHandlers
from queue_service.store.mongo import Mongo


def source(number: int) -> Definition:
    return Definition(lang="python", body=f"return {number}")


@pytest.fixture
def handlers(mongo: Mongo) -> MongoHandlers:
    return MongoHandlers(mongo)


async def versions_of(handlers: MongoHandlers, name: str = "resize") -> list[int]:
    return [handler.version for handler, _ in await handlers.versions("acme", name)]


@pytest.mark.checklist("M61", "M62", "M72", "M73")
async def test_the_newest_version_is_the_one_that_was_put_last(handlers: MongoHandlers) -> None:
    everything = Definition(
        lang="node",
        body="module.exports = () => '$body'",
        eid="shared",
        before="let n = 0",
        beforeEach="n += 1",
        afterEach="// \u2028 \U0001f525",
    )
    first, new = await handlers.put("acme", "resize", source(1))
    assert (first.version, new) == (1, True)
    second, new = await handlers.put("acme", "resize", everything)
    assert (second.version, new) == (2, True)
    assert (second.tenant, second.name, second.definition) == ("acme", "resize", everything)
    assert await handlers.get("acme", "resize") == second


@pytest.mark.checklist("M19", "M62", "M94")
async def test_every_version_is_kept_and_can_be_pinned(handlers: MongoHandlers) -> None:
    earliest = datetime.now(UTC) - timedelta(seconds=1)
    for number in (1, 2, 3):
        await handlers.put("acme", "resize", source(number))
    for number in (1, 2, 3):
        pinned = await handlers.get("acme", "resize", number)
        assert pinned is not None
        assert (pinned.version, pinned.definition) == (number, source(number))
    assert await handlers.get("acme", "resize", 4) is None
    assert await versions_of(handlers) == [3, 2, 1]
    moments = [moment for _, moment in await handlers.versions("acme", "resize")]
    assert all(earliest <= moment <= datetime.now(UTC) for moment in moments)


@pytest.mark.checklist("M61")
async def test_an_unchanged_upload_keeps_its_version(handlers: MongoHandlers) -> None:
    await handlers.put("acme", "resize", source(1))
    again, new = await handlers.put("acme", "resize", source(1))
    assert (again.version, new) == (1, False)
    assert await versions_of(handlers) == [1]
    await handlers.put("acme", "resize", source(2))
    back, new = await handlers.put("acme", "resize", source(1))
    assert (back.version, new) == (3, True)  # unchanged means: like the newest


@pytest.mark.checklist("M61")
@pytest.mark.parametrize("field", ["lang", "body", "eid", "before", "beforeEach", "afterEach"])
async def test_a_change_of_any_field_is_a_new_version(handlers: MongoHandlers, field: str) -> None:
    base = {"lang": "python", "body": "x", "eid": "x", "before": "x"}
    base |= {"beforeEach": "x", "afterEach": "x"}
    await handlers.put("acme", "resize", Definition(**base))
    changed, new = await handlers.put("acme", "resize", Definition(**base | {field: "y"}))
    assert (changed.version, new) == (2, True)


@pytest.mark.checklist("M63")
async def test_a_deleted_handler_is_undefined_in_all_its_versions(handlers: MongoHandlers) -> None:
    await handlers.put("acme", "resize", source(1))
    await handlers.put("acme", "resize", source(2))
    assert await handlers.delete("acme", "resize")
    assert [await handlers.get("acme", "resize", number) for number in (None, 1, 2, 3)] == [
        None
    ] * 4
    assert await handlers.names("acme") == []
    assert not await handlers.delete("acme", "resize")
    assert not await handlers.delete("acme", "never_there")


@pytest.mark.checklist("M63", "M72")
async def test_a_version_number_is_never_used_again(handlers: MongoHandlers) -> None:
    given = []
    for number in (1, 2):
        given.append((await handlers.put("acme", "resize", source(1)))[0].version)
        given.append((await handlers.put("acme", "resize", source(number + 1)))[0].version)
        assert await handlers.delete("acme", "resize")
    # As it was before the deletion, and new all the same.
    reborn, new = await handlers.put("acme", "resize", source(3))
    assert new
    given.append(reborn.version)
    assert given == sorted(set(given))
    assert await handlers.get("acme", "resize") == reborn
    assert await versions_of(handlers) == given[::-1]
    first = await handlers.get("acme", "resize", 1)
    assert first is not None
    assert first.definition == source(1)


@pytest.mark.checklist("M61")
async def test_uploads_at_once_get_different_versions_and_none_is_lost(
    handlers: MongoHandlers,
) -> None:
    puts = await asyncio.gather(*(handlers.put("acme", "resize", source(n)) for n in range(8)))
    assert sorted(handler.version for handler, _ in puts) == list(range(1, 9))
    for handler, new in puts:
        assert new
        assert await handlers.get("acme", "resize", handler.version) == handler


async def test_equal_uploads_at_once_become_one_version(handlers: MongoHandlers) -> None:
    puts = await asyncio.gather(*(handlers.put("acme", "resize", source(1)) for _ in range(8)))
    assert [handler.version for handler, _ in puts] == [1] * 8
    assert sum(new for _, new in puts) == 1


async def test_deletions_at_once_delete_once(handlers: MongoHandlers) -> None:
    await handlers.put("acme", "resize", source(1))
    assert sum(await asyncio.gather(*(handlers.delete("acme", "resize") for _ in range(8)))) == 1
    assert (await handlers.put("acme", "resize", source(1)))[0].version == 3


@pytest.mark.checklist("M80")
async def test_old_versions_can_be_cleaned_but_not_the_newest(handlers: MongoHandlers) -> None:
    for number in (1, 2, 3):
        await handlers.put("acme", "resize", source(number))
    await handlers.put("beta", "resize", source(1))
    assert await handlers.clean("acme", "resize", 2)
    assert await versions_of(handlers) == [3, 1]
    assert await handlers.get("acme", "resize", 2) is None
    assert not await handlers.clean("acme", "resize", 2)
    assert not await handlers.clean("acme", "resize", 3)
    assert not await handlers.clean("acme", "crop", 1)
    assert (await handlers.put("acme", "resize", source(4)))[0].version == 4
    assert await handlers.get("beta", "resize") is not None


@pytest.mark.checklist("M3", "M94")
async def test_names_lists_a_tenants_own_handlers_in_their_newest_version(
    handlers: MongoHandlers,
) -> None:
    for name in ("resize", "crop", "gone"):
        await handlers.put("acme", name, source(1))
    await handlers.put("acme", "resize", source(2))
    await handlers.delete("acme", "gone")
    await handlers.put("beta", "theirs", source(1))
    found = [(handler.name, handler.version) for handler, _ in await handlers.names("acme")]
    assert found == [("crop", 1), ("resize", 2)]


@pytest.mark.checklist("M3")
async def test_another_tenants_handler_is_as_good_as_none(handlers: MongoHandlers) -> None:
    await handlers.put("acme", "resize", source(1))
    await handlers.put("acme", "resize", source(2))
    assert await handlers.get("beta", "resize") is None
    assert await handlers.get("beta", "resize", 1) is None
    assert await handlers.versions("beta", "resize") == []
    assert not await handlers.delete("beta", "resize")
    assert not await handlers.clean("beta", "resize", 1)
    theirs, new = await handlers.put("beta", "resize", source(2))
    assert (theirs.version, new) == (1, True)
    assert await versions_of(handlers) == [2, 1]
