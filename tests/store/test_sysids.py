"""Sysids: a slot belongs to one daemon at a time, and no two reservations are ever alike."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from queue_service.batch import FIRST_SYSID, WORD_PREFIX
from queue_service.store.base import Sysid
from queue_service.store.daemons import MongoDaemons
from queue_service.store.mongo import Mongo
from tests.store.support import LEASE_S


@pytest.fixture
def daemons(mongo: Mongo) -> MongoDaemons:
    return MongoDaemons(mongo)


@pytest.mark.checklist("M22", "M24")
async def test_daemons_that_reserve_at_once_get_different_slots(daemons: MongoDaemons) -> None:
    sysids = await asyncio.gather(*(daemons.reserve({}, LEASE_S) for _ in range(16)))
    assert sorted(sysid.slot for sysid in sysids) == list(range(1, 17))
    assert {sysid.epoch for sysid in sysids} == {1}


@pytest.mark.checklist("M22", "M24")
async def test_daemons_that_race_for_lapsed_slots_get_different_ones(daemons: MongoDaemons) -> None:
    first = [await daemons.reserve({}, LEASE_S) for _ in range(4)]
    for sysid in first:
        await daemons.release(sysid)
    again = await asyncio.gather(*(daemons.reserve({}, LEASE_S) for _ in range(8)))
    assert sorted(sysid.slot for sysid in again) == list(range(1, 9))
    assert {sysid.slot: sysid.epoch for sysid in again} == {
        slot: 2 if slot <= 4 else 1 for slot in range(1, 9)
    }


@pytest.mark.checklist("M24")
async def test_an_unrenewed_sysid_becomes_free_and_its_next_holder_has_a_new_one(
    daemons: MongoDaemons,
) -> None:
    old = await daemons.reserve({}, 0.0)
    new = await daemons.reserve({}, LEASE_S)
    assert (new.slot, new.epoch) == (old.slot, old.epoch + 1)
    assert str(new) != str(old)
    assert not await daemons.renew_sysid(old, LEASE_S)
    await daemons.release(old)  # too late: it must not set free what another daemon holds
    assert await daemons.renew_sysid(new, LEASE_S)
    assert (await daemons.reserve({}, LEASE_S)).slot != new.slot


@pytest.mark.checklist("M24")
async def test_a_renewed_sysid_is_kept(mongo: Mongo, daemons: MongoDaemons) -> None:
    ours = await daemons.reserve({}, 0.0)
    earliest = await mongo.now()
    assert await daemons.renew_sysid(ours, LEASE_S)
    latest = await mongo.now()
    row = await mongo.collection("daemons").find_one({"_id": ours.slot})
    assert row is not None
    assert earliest <= row["dt"] - timedelta(seconds=LEASE_S) <= latest
    assert (await daemons.reserve({}, LEASE_S)).slot != ours.slot


@pytest.mark.checklist("M24")
async def test_a_released_slot_is_free_at_once_and_the_lowest_goes_first(
    daemons: MongoDaemons,
) -> None:
    sysids = [await daemons.reserve({}, LEASE_S) for _ in range(3)]
    for sysid in reversed(sysids[:2]):
        await daemons.release(sysid)
    again = [await daemons.reserve({}, LEASE_S) for _ in range(3)]
    assert [(sysid.slot, sysid.epoch) for sysid in again] == [(1, 2), (2, 2), (4, 1)]


@pytest.mark.checklist("M22")
async def test_a_sysid_that_nobody_reserved_is_not_held(daemons: MongoDaemons) -> None:
    ours = await daemons.reserve({}, LEASE_S)
    for foreign in (Sysid(slot=7, epoch=1), Sysid(slot=ours.slot, epoch=ours.epoch + 1)):
        assert not await daemons.renew_sysid(foreign, LEASE_S)
        await daemons.release(foreign)
    assert await daemons.renew_sysid(ours, LEASE_S)


async def test_a_slot_says_who_holds_it(mongo: Mongo, daemons: MongoDaemons) -> None:
    # Whoever writes such a name must not have it taken for an expression.
    info = {"host": "$dt", "pid": "17"}
    await daemons.reserve({"host": "elsewhere"}, 0.0)
    await daemons.reserve(info, LEASE_S)
    rows = await mongo.collection("daemons").find().to_list()
    assert [row["info"] for row in rows] == [info]


@pytest.mark.parametrize("slot", [1, 9, 10, 1234])
def test_a_sysid_can_be_told_from_the_words_for_other_locks(slot: int) -> None:
    lock = str(Sysid(slot=slot, epoch=3))
    assert lock >= FIRST_SYSID > WORD_PREFIX
