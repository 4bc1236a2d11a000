"""Bad requests: each is refused with its own status, as a problem that says what was wrong.

Who may ask at all is in `test_keys`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from pymongo import AsyncMongoClient

from .support import NDJSON, PROBLEM, Answer, Client, Hearth, serving, settings_of

LINE_MAX, BODY_MAX, LINES_MAX = 1000, 4096, 50


@pytest.fixture(scope="module")
async def strict(mongod: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hearth]:
    """A daemon with small limits."""
    database = f"strict_{uuid4().hex[:12]}"
    settings = settings_of(
        tmp_path_factory.mktemp("strict"),
        mongod,
        database,
        body_max_bytes=BODY_MAX,
        line_max_bytes=LINE_MAX,
        lines_max=LINES_MAX,
    )
    async with serving(settings) as running:
        yield running
    async with AsyncMongoClient[dict[str, object]](mongod) as client:
        await client.drop_database(database)


@pytest.fixture(scope="module")
async def neighbour(strict: Hearth) -> Client:
    """A tenant who does everything right."""
    made = await strict.tenant()
    await made.upload("still", "return payload")
    return made


@pytest.fixture
async def client(strict: Hearth, neighbour: Client) -> AsyncIterator[Client]:
    """A tenant of whom nothing is queued afterwards, at a daemon that still serves."""
    made = await strict.tenant()
    yield made
    assert await made.board() == {}
    assert (await made.get("jobs")).json == {"jobs": [], "next": None}
    assert (await made.ask("GET", "/readyz")).json["status"] == "ok"
    assert [r["value"] for r in await neighbour.run("still", [1, 2])] == [1, 2]


def check(answer: Answer, status: int, slug: str, *says: str) -> None:
    assert (answer.status, answer.type) == (status, PROBLEM), answer.body
    problem = answer.json
    assert problem.keys() >= {"type", "title", "status", "detail"}
    assert (problem["type"], problem["status"]) == (f"urn:hearth:problem:{slug}", status)
    for text in says:
        assert text in problem["detail"]


BODIES = {
    "empty": (b"", 400, "bad-request", "empty"),
    "a long line": (b"x" * (LINE_MAX + 1), 413, "too-large", "line 1 is over 1000 bytes"),
    "a long third line": (b"\n\n" + b"x" * (LINE_MAX + 1) + b"\n", 413, "too-large", "line 3 "),
    "a long body": (b"x\n" * (BODY_MAX // 2) + b"x", 413, "too-large", "4096 bytes"),
    "a very long body": (b"x\n" * 500_000, 413, "too-large", "4096 bytes"),
    "many lines": (b"\n" * (LINES_MAX + 1), 413, "too-large", "line 51 "),
}


@pytest.mark.parametrize(("body", "status", "slug", "says"), BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("path", ["/{tenant}/job/work/add", "/v1/{tenant}/jobs/work"])
async def test_a_body_that_cannot_be_taken(
    client: Client, path: str, body: bytes, status: int, slug: str, says: str
) -> None:
    answer = await client.ask("POST", path.format(tenant=client.tenant), body)
    check(answer, status, slug, says)


async def test_bodies_at_their_limits_are_taken(strict: Hearth) -> None:
    client = await strict.tenant()
    line = b"x" * LINE_MAX
    for body in (line, line + b"\n", b"\n" * LINES_MAX, (line + b"\n") * 4 + b"y" * 92):
        assert len(body) <= BODY_MAX
        assert (await client.post("work", body)).status == 202


BAD_TYPES = [
    *("a%20b", "a-b", "a,b", "a%7Cb", "a%0Ab", "a%0A", "%0Aa", "a%00", "a%2Fb", "1a", ".a", "a..b"),
    *("a" * 65, "%C3%A4", "%FF", "queue.sysid", "__done", "a@", "a@0", "a@x", "a@1@2", "a@01"),
]


@pytest.mark.checklist("M58")
@pytest.mark.parametrize("type_", BAD_TYPES)
async def test_a_jobtype_that_cannot_be_one(client: Client, type_: str) -> None:
    for path in (f"/{client.tenant}/job/{type_}/add", f"/v1/{client.tenant}/jobs/{type_}"):
        check(await client.ask("POST", path, b"1"), 400, "bad-request", "jobtype")
    path = f"/v1/{client.tenant}/handlers/{type_}?lang=python"
    check(await client.ask("PUT", path, b"pass"), 400, "bad-request", "jobtype")


@pytest.mark.parametrize("type_", ["a@1", "a@2"])
async def test_a_version_cannot_be_uploaded_under_a_number_of_ones_choice(
    client: Client, type_: str
) -> None:
    path = f"/v1/{client.tenant}/handlers/{type_}?lang=python"
    check(await client.ask("PUT", path, b"pass"), 400, "bad-request", "jobtype")


BAD_TENANTS = [
    "Acme",
    "1a",
    "a-b",
    "a_b",
    "a.b",
    "a%0A",
    "a%2Fb",
    "a" * 33,
    "v1",
    "admin",
    "%C3%A4",
]


@pytest.mark.parametrize("name", BAD_TENANTS)
async def test_a_tenant_that_cannot_be_one(client: Client, strict: Hearth, name: str) -> None:
    answer = await client.ask("POST", f"/v1/{name}/jobs/work", b"1")
    check(answer, 400, "bad-request", "tenant")
    made = await strict.admin.ask("PUT", f"/v1/admin/tenants/{name}")
    check(made, 400, "bad-request", "tenant")


BAD_VALUES = {
    "delay": ["-1", "x", "", "nan", "inf", "1e12"],
    "at": ["yesterday", "", "2026-13-01", "3000-01-01", "0001-01-01T00:00:00%2B14:00", "12"],
    "priority": ["0", "101", "-1", "1.5", "x", "", "%D9%A3", "9999999999"],
    "timeout": ["0", "-1", "901", "x", "nan", ""],
    "retries": ["-1", "1001", "1.0", "x", ""],
    "retry_delay": ["-1", "86401", "x", "nan"],
    "wait": ["-1", "61", "x", "nan", ""],
    "ack": ["disk", "", "STORE"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_VALUES.items() for value in values]
)
async def test_a_parameter_with_a_value_that_cannot_be_used_is_named(
    client: Client, name: str, value: str
) -> None:
    path = f"/v1/{client.tenant}/jobs/work?{name}={value}"
    check(await client.ask("POST", path, b"1"), 400, "bad-request", f"parameter '{name}'")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("delai=1", "unknown parameter 'delai'"),
        ("delay=1&Priority=3", "unknown parameter 'Priority'"),
        ("delay=1&at=2026-01-01", "'at' and 'delay'"),
    ],
)
async def test_parameters_that_mean_nothing(client: Client, query: str, says: str) -> None:
    path = f"/v1/{client.tenant}/jobs/work?{query}"
    check(await client.ask("POST", path, b"1"), 400, "bad-request", says)


BAD_QUERIES = {
    "limit": ["0", "1001", "-1", "x", "", "1.0", "0000001000000", f"0000001{'0' * 5000}"],
    "cursor": ["x", "%FF", "W10", "WzFd", "bnVsbA", "WyJhIiwiYiIsMV0", "WzEsMiwzXQ"],
}


@pytest.mark.parametrize("what", ["jobs", "results"])
@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_QUERIES.items() for value in values]
)
async def test_a_bad_page_is_refused(client: Client, what: str, name: str, value: str) -> None:
    answer = await client.ask("GET", f"/v1/{client.tenant}/{what}?{name}={value}")
    check(answer, 400, "bad-request", f"parameter '{name}'")


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("jobs?state=abandoned", "state"),
        ("jobs?state=", "state"),
        ("jobs?state=READY", "state"),
        ("jobs?code=good", "code"),
        ("results?code=good", "code"),
        ("results?code=ok,good", "code"),
    ],
)
async def test_a_filter_with_a_word_that_is_none_is_refused(
    client: Client, query: str, name: str
) -> None:
    answer = await client.get(query)
    check(answer, 400, "bad-request", f"parameter '{name}'")


@pytest.mark.parametrize("cursor", ["x", "WyJhIiwiYiIsMV0"])
async def test_a_bad_cursor_of_a_stream_is_refused_before_the_stream_begins(
    client: Client, cursor: str
) -> None:
    answer = await client.get("results", {"Accept": NDJSON}, cursor=cursor)
    check(answer, 400, "bad-request", "parameter 'cursor'")


@pytest.mark.parametrize("cursor", ["x", "-1", "1" * 10, ""])
async def test_a_bad_cursor_inside_a_batch_is_refused(strict: Hearth, cursor: str) -> None:
    client = await strict.tenant()
    ids = await client.submit("unhandled", [1])
    answer = await client.get("results", batch=ids[0].partition("-")[0], cursor=cursor)
    check(answer, 400, "bad-request", "parameter 'cursor'")


ELSEWHERE = {
    "an unknown path": ("GET", "/nothing", 404, "http-404"),
    "an unknown path of a tenant": ("GET", "/v1/{tenant}/nothing", 404, "http-404"),
    "a path with more behind it": ("POST", "/v1/{tenant}/jobs/work/more", 404, "http-404"),
    "another method": ("DELETE", "/livez", 405, "http-405"),
    "reading where one posts": ("GET", "/{tenant}/job/work/add", 405, "http-405"),
    "a bad id of a job": ("GET", "/v1/{tenant}/jobs/x", 404, "not-found"),
    "a bad id of a result": ("GET", "/v1/{tenant}/results/x-1", 404, "not-found"),
    "a bad id of a batch": ("GET", "/v1/{tenant}/results?batch=x", 404, "not-found"),
}


@pytest.mark.parametrize(
    ("method", "path", "status", "slug"), ELSEWHERE.values(), ids=ELSEWHERE.keys()
)
async def test_asking_for_what_is_not_there(
    client: Client, method: str, path: str, status: int, slug: str
) -> None:
    answer = await client.ask(method, path.format(tenant=client.tenant))
    check(answer, status, slug)
    if status == 405:
        assert answer.headers["Allow"]


async def test_an_expectation_nobody_can_meet_is_answered_as_a_problem(client: Client) -> None:
    path = f"/v1/{client.tenant}/jobs/work"
    answer = await client.ask("POST", path, b"1", {"Expect": "more"})
    check(answer, 417, "http-417")


async def test_a_client_that_goes_away_in_the_middle_of_its_body_queues_nothing(
    client: Client,
) -> None:
    host, port = client.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/{client.tenant}/jobs/work HTTP/1.1\r\nHost: {host}\r\n"
    head += f"Authorization: Bearer {client.key}\r\nContent-Length: 100\r\n\r\n1\n2\n"
    writer.write(head.encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()
