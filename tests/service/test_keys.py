"""Keys: what opens nothing is refused alike, and nobody learns what belongs to somebody else."""

from __future__ import annotations

import asyncio

import pytest

from queue_service.auth import new_key

from .support import PROBLEM, Answer, Client, Hearth

ROUTES = [
    ("POST", "/{tenant}/job/work/add"),
    ("POST", "/v1/{tenant}/jobs/work"),
    ("POST", "/{tenant}/handler/add/work/add?method=python"),
    ("POST", "/{tenant}/handler/del/work/delete"),
    ("GET", "/{tenant}/handler/get/work"),
    ("PUT", "/v1/{tenant}/handlers/work?lang=python"),
    ("GET", "/v1/{tenant}/handlers/work"),
    ("GET", "/v1/{tenant}/handlers/work/versions"),
    ("GET", "/v1/{tenant}/handlers"),
    ("DELETE", "/v1/{tenant}/handlers/work"),
    ("GET", "/v1/{tenant}/jobs"),
    ("GET", "/v1/{tenant}/jobs/{id}"),
    ("GET", "/v1/{tenant}/results"),
    ("GET", "/v1/{tenant}/results/{id}"),
    ("GET", "/v1/{tenant}/results?batch={batch}"),
    ("GET", "/v1/{tenant}/scoreboard"),
]
ADMIN_ROUTES = [
    ("GET", "/v1/admin/tenants"),
    ("PUT", "/v1/admin/tenants/{tenant}"),
    ("GET", "/v1/admin/tenants/{tenant}"),
    ("DELETE", "/v1/admin/tenants/{tenant}"),
    ("POST", "/v1/admin/tenants/{tenant}/keys"),
    ("DELETE", "/v1/admin/tenants/{tenant}/keys/abcdefgh"),
]


@pytest.fixture(scope="module")
async def other(hearth: Hearth) -> Client:
    """Somebody else, with a handler and one job that has ended."""
    made = await hearth.tenant()
    await made.upload("work", "return 1")
    await made.run("work", [1])
    return made


async def call(client: Client, method: str, path: str, authorization: str, **names: str) -> Answer:
    body = b"pass" if method in ("POST", "PUT") else None
    return await client.ask(method, path.format(**names), body, {"Authorization": authorization})


def bad_keys(good: str) -> list[str]:
    """What is no key, and what looks like one."""
    _, key_id, secret = good.split("_", 2)
    return [
        "",
        good,
        "Bearer",
        "Bearer x",
        f"Basic {good}",
        f"Bearer {new_key()}",
        f"Bearer hearth_{key_id}_{'A' * 43}",
        f"Bearer hearth_{key_id}_{secret[:-1]}",
        f"Bearer hearth_{key_id}_{secret}A",
        f"Bearer hearth_{key_id}_",
        f"Bearer {good} {good}",
    ]


@pytest.mark.parametrize(("method", "path"), [*ROUTES, *ADMIN_ROUTES])
async def test_without_a_good_key_every_route_answers_401_alike(
    acme: Client, method: str, path: str
) -> None:
    [id_] = await acme.submit("unhandled", [1])
    names = {"tenant": acme.tenant, "id": id_, "batch": id_.partition("-")[0]}
    details = set()
    for authorization in bad_keys(acme.key):
        answer = await call(acme, method, path, authorization, **names)
        assert (answer.status, answer.type) == (401, PROBLEM), authorization
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.json["type"] == "urn:hearth:problem:unauthorized"
        if authorization.startswith("Bearer "):
            details.add(answer.body)
    assert len(details) == 1
    assert [row["waiting"] for row in (await acme.board()).values()] == [1]


async def test_a_key_with_bytes_that_are_no_text_is_refused_like_any_other(acme: Client) -> None:
    host, port = acme.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    path = f"/v1/{acme.tenant}/scoreboard"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n".encode())
    writer.write(b"Authorization: Bearer hearth_\xff\xfe\r\n\r\n")
    status = await reader.readline()
    await reader.read()
    writer.close()
    await writer.wait_closed()
    assert status.split()[1] == b"401"


@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
async def test_a_tenants_key_opens_no_route_of_the_operator(
    acme: Client, method: str, path: str
) -> None:
    answer = await call(acme, method, path, f"Bearer {acme.key}", tenant=acme.tenant)
    assert (answer.status, answer.type) == (401, PROBLEM)
    assert (await acme.get("scoreboard")).status == 200


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_the_operators_key_is_no_tenants(
    hearth: Hearth, acme: Client, method: str, path: str
) -> None:
    names = {"tenant": acme.tenant, "id": "x", "batch": "x"}
    answer = await call(acme, method, path, f"Bearer {hearth.admin_key}", **names)
    assert (answer.status, answer.type) == (404, PROBLEM)


@pytest.mark.checklist("M3")
@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_anothers_tenant_answers_like_one_that_is_missing(
    acme: Client, other: Client, method: str, path: str
) -> None:
    record = (await other.results())[0]
    names = {"id": record["id"], "batch": record["id"].partition("-")[0]}
    mine = f"Bearer {acme.key}"
    foreign = await call(acme, method, path, mine, tenant=other.tenant, **names)
    missing = await call(acme, method, path, mine, tenant="nobody", **names)
    assert (foreign.status, foreign.type) == (404, PROBLEM)
    assert (foreign.status, foreign.body) == (missing.status, missing.body)
    assert foreign.headers.keys() == missing.headers.keys()
    assert (await other.row("work"))["ok"] == 1
    assert (await other.get("handlers/work")).json["version"] == 1


@pytest.mark.checklist("M3")
@pytest.mark.parametrize("what", ["jobs/{}", "results/{}", "results?batch={}"])
async def test_anothers_ids_answer_like_ids_that_are_missing(
    acme: Client, other: Client, what: str
) -> None:
    record = (await other.results())[0]
    theirs = record["id"].partition("-")[0] if "batch" in what else record["id"]
    assert (await other.get(what.format(theirs))).status == 200
    nobodys = "0" * 22 + theirs[22:]
    foreign, missing = [await acme.get(what.format(id_)) for id_ in (theirs, nobodys)]
    assert (foreign.status, foreign.type) == (404, PROBLEM)
    assert (foreign.status, foreign.body) == (missing.status, missing.body)


@pytest.mark.checklist("M3")
async def test_tenants_with_equal_jobtypes_see_only_their_own(hearth: Hearth) -> None:
    tenants = [await hearth.tenant() for _ in range(3)]
    for n, tenant in enumerate(tenants):
        await tenant.upload("same", f"return {n}")
    for n, tenant in enumerate(tenants):
        assert [r["value"] for r in await tenant.run("same", range(n + 1))] == [n] * (n + 1)
    for n, tenant in enumerate(tenants):
        assert [r["value"] for r in await tenant.results()] == [n] * (n + 1)
        assert {type_: row["ok"] for type_, row in (await tenant.board()).items()} == {
            "same": n + 1
        }
        assert len((await tenant.get("jobs")).json["jobs"]) == n + 1
