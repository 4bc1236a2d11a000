"""Keys: who is let in, that all others are refused alike, and that secrets are not kept."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from queue_service import auth, clock
from queue_service.auth import Caller, Keys, new_key, stored_form
from queue_service.errors import StoreUnavailable, Unauthorized
from queue_service.store.base import Key, TenantStore

NOW = datetime(2026, 11, 18, 8, 0, tzinfo=UTC)
ADMIN = "hearth_operator_" + "a" * 43
GOOD = "hearth_acmekey1_" + "s" * 43


@dataclass
class MemoryTenants:
    """A `TenantStore` in memory that notes which keys were looked up."""

    tenants: dict[str, datetime] = field(default_factory=dict)
    stored: dict[str, Key] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    is_away: bool = False

    async def create(self, tenant: str, now: datetime) -> bool:
        return self.tenants.setdefault(tenant, now) is now

    async def exists(self, tenant: str) -> bool:
        return tenant in self.tenants

    async def all(self) -> list[tuple[str, datetime]]:
        return sorted(self.tenants.items())

    async def delete(self, tenant: str) -> bool:
        self.stored = {id_: key for id_, key in self.stored.items() if key.tenant != tenant}
        return self.tenants.pop(tenant, None) is not None

    async def add_key(self, key: Key) -> bool:
        self.stored[key.id] = key
        return key.tenant in self.tenants

    async def revoke_key(self, tenant: str, key_id: str) -> bool:
        return self.stored.pop(key_id, None) is not None

    async def keys(self, tenant: str) -> list[Key]:
        return [key for key in self.stored.values() if key.tenant == tenant]

    async def find_key(self, key_id: str) -> Key | None:
        self.asked.append(key_id)
        if self.is_away:
            raise StoreUnavailable("it does not answer")
        return self.stored.get(key_id)


class Time:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def store() -> MemoryTenants:
    key = stored_form(GOOD, "acme", NOW)
    return MemoryTenants(tenants={"acme": NOW}, stored={key.id: key})


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(clock, "monotonic", made)
    return made


async def refusal_of(keys: Keys, header: str) -> tuple[int, str, str]:
    with pytest.raises(Unauthorized) as refusal:
        await keys.caller(header)
    return refusal.value.status, refusal.value.slug, str(refusal.value)


async def test_a_good_key_speaks_for_its_tenant(store: MemoryTenants) -> None:
    checked: TenantStore = store
    assert await Keys(checked, ADMIN).caller(f"Bearer {GOOD}") == Caller("acme", "acmekey1")


async def test_the_admin_key_speaks_for_the_operator(store: MemoryTenants) -> None:
    assert await Keys(store, ADMIN).caller(f"Bearer {ADMIN}") == Caller(None, "admin")
    assert store.asked == []


@pytest.mark.parametrize("header", [f"bearer {GOOD}", f"BEARER {GOOD}", f"Bearer   {GOOD} "])
async def test_the_scheme_may_be_written_in_any_case(store: MemoryTenants, header: str) -> None:
    assert (await Keys(store, ADMIN).caller(header)).tenant == "acme"


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(GOOD[:-1] + "t", id="wrong secret"),
        pytest.param("hearth_nobodys1_" + "s" * 43, id="unknown id"),
        pytest.param("hearth_operator_" + "b" * 43, id="nearly the admin's"),
        pytest.param("", id="empty"),
        pytest.param(GOOD[:-1], id="too short"),
        pytest.param(GOOD + "s", id="too long"),
        pytest.param(GOOD + "\n" + GOOD, id="two lines"),
        pytest.param(GOOD.upper(), id="upper case"),
        pytest.param(GOOD.replace("hearth", "Hearth"), id="other prefix"),
        pytest.param("hearth_acmekey1_", id="no secret"),
        pytest.param(f"{GOOD} {GOOD}", id="twice"),
        pytest.param("hearth_acme$ne1_" + "s" * 43, id="operator in the id"),
        pytest.param("hearth_acmekey1_" + "é" * 43, id="letters beyond ASCII"),
        pytest.param("x" * 100_000, id="100 kB"),
        pytest.param("\udcff" * 43, id="bytes that are no UTF-8"),
        pytest.param(hashlib.sha256(b"s" * 43).hexdigest(), id="the stored digest"),
    ],
)
async def test_every_other_key_is_refused_alike(store: MemoryTenants, key: str) -> None:
    keys = Keys(store, ADMIN)
    expected = 401, "unauthorized", "this key opens nothing"
    assert await refusal_of(keys, f"Bearer {key}") == expected


@pytest.mark.parametrize(
    "header",
    ["", GOOD, f"Basic {GOOD}", f"Token {GOOD}", f"Bearer:{GOOD}", f" Bearer {GOOD}", "Digest x"],
)
async def test_every_other_scheme_is_refused_alike(store: MemoryTenants, header: str) -> None:
    status, slug, text = await refusal_of(Keys(store, ADMIN), header)
    assert (status, slug) == (401, "unauthorized")
    assert text == "send a key: Authorization: Bearer hearth_…"
    assert store.asked == []


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "Bearer  "])
async def test_no_key_opens_nothing_even_if_the_admin_key_is_empty(
    store: MemoryTenants, header: str
) -> None:
    await refusal_of(Keys(store, ""), header)


async def test_no_refusal_repeats_the_key(store: MemoryTenants) -> None:
    wrong = GOOD[:-1] + "t"
    for header in (f"Bearer {wrong}", wrong, f"Basic {wrong}"):
        assert wrong not in (await refusal_of(Keys(store, ADMIN), header))[2]


async def test_an_id_is_compared_with_its_own_secret_only(store: MemoryTenants) -> None:
    other = "hearth_zetakey1_" + "z" * 43
    await store.create("zeta", NOW)
    await store.add_key(stored_form(other, "zeta", NOW))
    keys = Keys(store, ADMIN)
    assert (await keys.caller(f"Bearer {other}")).tenant == "zeta"
    await refusal_of(keys, "Bearer hearth_zetakey1_" + "s" * 43)
    await refusal_of(keys, "Bearer hearth_acmekey1_" + "z" * 43)


async def test_a_good_key_is_remembered_for_five_seconds(store: MemoryTenants, time: Time) -> None:
    keys = Keys(store, ADMIN)
    await keys.caller(f"Bearer {GOOD}")
    await store.revoke_key("acme", "acmekey1")
    time.now_s += 4.9
    assert (await keys.caller(f"Bearer {GOOD}")).tenant == "acme"
    assert store.asked == ["acmekey1"]
    time.now_s += 0.1
    await refusal_of(keys, f"Bearer {GOOD}")


async def test_a_bad_key_is_not_remembered(store: MemoryTenants, time: Time) -> None:
    keys, late = Keys(store, ADMIN), "hearth_latekey1_" + "l" * 43
    await refusal_of(keys, f"Bearer {late}")
    await store.add_key(stored_form(late, "acme", NOW))
    assert (await keys.caller(f"Bearer {late}")).key_id == "latekey1"


async def test_forgetting_makes_a_revocation_hold_at_once(store: MemoryTenants, time: Time) -> None:
    keys = Keys(store, ADMIN)
    await keys.caller(f"Bearer {GOOD}")
    await store.revoke_key("acme", "acmekey1")
    keys.forget()
    await refusal_of(keys, f"Bearer {GOOD}")


async def test_while_the_store_is_away_keys_good_of_late_stay_good(
    store: MemoryTenants, time: Time
) -> None:
    keys = Keys(store, ADMIN)
    await keys.caller(f"Bearer {GOOD}")
    store.is_away = True
    time.now_s += 3599
    assert (await keys.caller(f"Bearer {GOOD}")).tenant == "acme"
    for key in (GOOD[:-1] + "t", "hearth_nobodys1_" + "s" * 43):
        with pytest.raises(StoreUnavailable):
            await keys.caller(f"Bearer {key}")
    time.now_s += 6
    with pytest.raises(StoreUnavailable):
        await keys.caller(f"Bearer {GOOD}")


async def test_a_key_known_to_be_revoked_is_not_trusted_when_the_store_goes(
    store: MemoryTenants, time: Time
) -> None:
    keys = Keys(store, ADMIN)
    await keys.caller(f"Bearer {GOOD}")
    await store.revoke_key("acme", "acmekey1")
    time.now_s += 5
    await refusal_of(keys, f"Bearer {GOOD}")
    store.is_away = True
    with pytest.raises(StoreUnavailable):
        await keys.caller(f"Bearer {GOOD}")


async def test_what_is_remembered_is_bounded(
    store: MemoryTenants, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "_REMEMBERED_MAX", 4)
    keys = Keys(store, ADMIN)
    for spaces in range(1, 50):  # the same key, written differently each time
        assert (await keys.caller(f"Bearer{' ' * spaces}{GOOD}")).tenant == "acme"
        assert len(keys._known) <= 4


def test_a_new_key_has_the_form_that_is_checked_and_is_new() -> None:
    made = [new_key() for _ in range(200)]
    assert len(set(made)) == 200
    assert len({key.split("_")[1] for key in made}) == 200
    for key in made:
        assert key.startswith("hearth_")
        assert len(key) == len("hearth_") + 8 + 1 + 43
        assert stored_form(key, "acme", NOW).id == key[7:15]


def test_the_store_is_given_a_digest_and_no_secret() -> None:
    key = stored_form(GOOD, "acme", NOW)
    assert key == Key(
        id="acmekey1", digest=hashlib.sha256(b"s" * 43).digest(), tenant="acme", created=NOW
    )
    assert "s" * 43 not in repr(key)


@pytest.mark.parametrize(
    "text", ["", "hearth_", GOOD + "\n", GOOD[1:], "hearth_UPPERKEY_" + "s" * 43]
)
def test_what_is_no_key_is_not_stored(text: str) -> None:
    with pytest.raises(ValueError, match="not a key"):
        stored_form(text, "acme", NOW)
