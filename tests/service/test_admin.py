"""The operator's side: tenants and keys, made and taken away; secrets shown once, kept never."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from pymongo import AsyncMongoClient

from queue_service import auth
from tests.waiting import eventually

from .support import PROBLEM, Client, Hearth, serving, settings_of


@pytest.fixture
def name() -> str:
    return f"t{uuid4().hex[:10]}"


async def opens(hearth: Hearth, key: str, tenant: str) -> int:
    """The status that a key gets for its tenant's scoreboard."""
    client = Client(hearth.http, hearth.url, key, tenant)
    return (await client.get("scoreboard")).status


async def test_a_tenant_is_made_once_with_a_key_and_left_alone_afterwards(
    hearth: Hearth, name: str
) -> None:
    path = f"/v1/admin/tenants/{name}"
    assert (await hearth.admin.ask("GET", path)).status == 404
    made = await hearth.admin.ask("PUT", path)
    assert made.status == 201
    assert made.json.keys() == {"tenant", "key"}
    assert made.json["tenant"] == name
    assert made.json["key"].startswith("hearth_")
    again = await hearth.admin.ask("PUT", path)
    assert (again.status, again.json) == (200, {"tenant": name})
    assert await opens(hearth, made.json["key"], name) == 200
    found = await hearth.admin.ask("GET", path)
    assert found.status == 200
    [key] = found.json["keys"]
    assert key["id"] == made.json["key"].split("_")[1]
    secret = made.json["key"].split("_", 2)[2]
    assert secret not in found.body.decode()
    listed = (await hearth.admin.ask("GET", "/v1/admin/tenants")).json["tenants"]
    assert name in {tenant["tenant"] for tenant in listed}


async def test_a_second_key_works_and_revoking_the_first_holds_at_once(
    hearth: Hearth, name: str
) -> None:
    path = f"/v1/admin/tenants/{name}"
    first = (await hearth.admin.ask("PUT", path)).json["key"]
    made = await hearth.admin.ask("POST", f"{path}/keys")
    assert (made.status, made.json["tenant"]) == (201, name)
    second = made.json["key"]
    assert second != first
    assert [await opens(hearth, key, name) for key in (first, second)] == [200, 200]
    revoked = await hearth.admin.ask("DELETE", f"{path}/keys/{first.split('_')[1]}")
    assert (revoked.status, revoked.body) == (204, b"")
    assert [await opens(hearth, key, name) for key in (first, second)] == [401, 200]
    gone = await hearth.admin.ask("DELETE", f"{path}/keys/{first.split('_')[1]}")
    assert (gone.status, gone.type) == (404, PROBLEM)
    left = (await hearth.admin.ask("GET", path)).json["keys"]
    assert [key["id"] for key in left] == [second.split("_")[1]]


async def test_a_key_cannot_be_revoked_under_anothers_name(hearth: Hearth, name: str) -> None:
    key = (await hearth.admin.ask("PUT", f"/v1/admin/tenants/{name}")).json["key"]
    other = await hearth.tenant()
    path = f"/v1/admin/tenants/{other.tenant}/keys/{key.split('_')[1]}"
    assert (await hearth.admin.ask("DELETE", path)).status == 404
    assert await opens(hearth, key, name) == 200


async def test_deleting_a_tenant_takes_its_keys_along(hearth: Hearth, name: str) -> None:
    path = f"/v1/admin/tenants/{name}"
    key = (await hearth.admin.ask("PUT", path)).json["key"]
    assert await opens(hearth, key, name) == 200
    assert (await hearth.admin.ask("DELETE", path)).status == 204
    assert await opens(hearth, key, name) == 401
    for method, more in (("GET", ""), ("DELETE", ""), ("POST", "/keys")):
        answer = await hearth.admin.ask(method, path + more)
        assert (answer.status, answer.type) == (404, PROBLEM)
    made = await hearth.admin.ask("PUT", path)
    assert made.status == 201
    assert await opens(hearth, key, name) == 401
    assert await opens(hearth, made.json["key"], name) == 200


async def test_a_key_revoked_at_one_daemon_soon_stops_working_at_the_others(
    mongod: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "_REMEMBERED_S", 0.5)
    one, two = (settings_of(tmp_path / number, mongod, database) for number in ("one", "two"))
    async with serving(one) as a, serving(two) as b:
        acme = await a.tenant()
        there = b.at(acme)
        assert (await there.get("scoreboard")).status == 200
        path = f"/v1/admin/tenants/{acme.tenant}/keys/{acme.key.split('_')[1]}"
        assert (await a.admin.ask("DELETE", path)).status == 204
        assert (await acme.get("scoreboard")).status == 401

        async def refused() -> bool:
            return (await there.get("scoreboard")).status == 401

        await eventually(refused, within_s=5)


async def test_the_operators_key_is_written_once_for_its_owner_alone(
    mongod: str, database: str, tmp_path: Path
) -> None:
    settings = settings_of(tmp_path / "data", mongod, database)
    async with serving(settings) as first:
        file = tmp_path / "data" / "admin.key"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.read_text() == f"{first.admin_key}\n"
        assert (await first.admin.ask("GET", "/v1/admin/tenants")).json == {"tenants": []}
    async with serving(settings) as second:
        assert second.admin_key == first.admin_key
        assert (await second.admin.ask("GET", "/v1/admin/tenants")).status == 200


async def test_an_operators_key_may_be_given_in_the_settings(
    mongod: str, database: str, tmp_path: Path
) -> None:
    given = "hearth_operator_of_our_choice"
    settings = settings_of(tmp_path, mongod, database, admin_key=given)
    (tmp_path / "admin.key").write_text("not this one\n")
    async with serving(settings) as hearth:
        answers = [
            await Client(hearth.http, hearth.url, key, "").ask("GET", "/v1/admin/tenants")
            for key in (given, "not this one")
        ]
        assert [answer.status for answer in answers] == [200, 401]


async def test_the_store_has_no_secret_of_any_key(
    mongod: str, database: str, tmp_path: Path
) -> None:
    async with (
        serving(settings_of(tmp_path, mongod, database)) as hearth,
        AsyncMongoClient[dict[str, Any]](mongod) as client,
    ):
        acme = await hearth.tenant()
        await acme.upload("work")
        await acme.run("work", [1])
        stored = b""
        for name in await client[database].list_collection_names():
            rows = await client[database][name].find().to_list()
            stored += b"".join(orjson.dumps(row, default=repr) for row in rows)
        key_id, secret = acme.key.removeprefix("hearth_").split("_", 1)
        assert key_id.encode() in stored
        for key in (secret, acme.key, hearth.admin_key):
            assert key.encode() not in stored
