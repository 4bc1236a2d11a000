"""Tenants and their keys: made once, kept without secrets, gone when revoked or deleted."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from queue_service import auth, clock
from queue_service.store.base import Key
from queue_service.store.mongo import Mongo
from queue_service.store.tenants import MongoTenants

NOW = clock.now()


def key(id_: str, tenant: str = "acme", minute: int = 0) -> Key:
    created = NOW + timedelta(minutes=minute)
    return Key(id=id_, digest=id_.encode() * 4, tenant=tenant, created=created)


@pytest.fixture
def tenants(mongo: Mongo) -> MongoTenants:
    return MongoTenants(mongo)


async def test_a_tenant_is_created_once(tenants: MongoTenants) -> None:
    assert not await tenants.exists("acme")
    made = await asyncio.gather(*(tenants.create("acme", NOW) for _ in range(4)))
    assert sum(made) == 1
    assert not await tenants.create("acme", NOW + timedelta(days=1))
    assert await tenants.create("beta", NOW)
    assert await tenants.exists("acme")
    assert await tenants.all() == [("acme", NOW), ("beta", NOW)]


async def test_a_key_is_stored_as_its_digest_alone(mongo: Mongo, tenants: MongoTenants) -> None:
    await tenants.create("acme", NOW)
    secret = auth.new_key()
    form = auth.stored_form(secret, "acme", NOW)
    assert await tenants.add_key(form)
    assert await tenants.find_key(form.id) == form
    assert await tenants.keys("acme") == [form]
    names = await mongo.database.list_collection_names()
    everything = [await mongo.collection(name).find().to_list() for name in names]
    assert form.id in repr(everything)
    assert secret.rpartition(f"{form.id}_")[2] not in repr(everything)


async def test_a_key_needs_a_tenant(tenants: MongoTenants) -> None:
    assert not await tenants.add_key(key("k1"))
    assert await tenants.find_key("k1") is None


async def test_adding_a_key_again_because_no_answer_came_adds_it_once(
    tenants: MongoTenants,
) -> None:
    await tenants.create("acme", NOW)
    assert await tenants.add_key(key("k1"))
    assert await tenants.add_key(key("k1"))
    assert await tenants.keys("acme") == [key("k1")]


async def test_a_revoked_key_is_gone_and_the_others_stay(tenants: MongoTenants) -> None:
    for tenant in ("acme", "beta"):
        await tenants.create(tenant, NOW)
    for one in (key("k2", minute=2), key("k1", minute=1), key("k3", "beta")):
        assert await tenants.add_key(one)
    assert [one.id for one in await tenants.keys("acme")] == ["k1", "k2"]
    assert not await tenants.revoke_key("beta", "k1")  # it is not theirs
    assert await tenants.revoke_key("acme", "k1")
    assert not await tenants.revoke_key("acme", "k1")
    assert await tenants.find_key("k1") is None
    assert [one.id for one in await tenants.keys("acme")] == ["k2"]
    assert [one.id for one in await tenants.keys("beta")] == ["k3"]


async def test_deleting_a_tenant_takes_its_keys_along(tenants: MongoTenants) -> None:
    for tenant in ("acme", "beta"):
        await tenants.create(tenant, NOW)
    for one in (key("k1"), key("k2"), key("k3", "beta")):
        await tenants.add_key(one)
    assert await tenants.delete("acme")
    assert not await tenants.delete("acme")
    assert not await tenants.exists("acme")
    assert [await tenants.find_key(id_) for id_ in ("k1", "k2")] == [None, None]
    assert await tenants.all() == [("beta", NOW)]
    assert await tenants.find_key("k3") == key("k3", "beta")
    # The name may be given again, and starts without keys.
    assert await tenants.create("acme", NOW)
    assert await tenants.keys("acme") == []
