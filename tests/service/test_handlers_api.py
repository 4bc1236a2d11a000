"""Handlers over HTTP: upload, read, versions, delete, and which version runs what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from .support import PROBLEM, Answer, Client, serving, settings_of

RETURN_ONE = "return 1"
SEED = {
    "put": ("POST", "/{tenant}/handler/add/{type}/add?method=python"),
    "get": ("GET", "/{tenant}/handler/get/{type}"),
    "delete": ("POST", "/{tenant}/handler/del/{type}/delete"),
}
V1 = {
    "put": ("PUT", "/v1/{tenant}/handlers/{type}?lang=python"),
    "get": ("GET", "/v1/{tenant}/handlers/{type}"),
    "delete": ("DELETE", "/v1/{tenant}/handlers/{type}"),
}
PATHS = pytest.mark.parametrize("paths", [SEED, V1], ids=["seed", "v1"])


async def call(
    client: Client, where: tuple[str, str], type_: str, body: bytes | None = None
) -> Answer:
    method, path = where
    return await client.ask(method, path.format(tenant=client.tenant, type=type_), body)


async def put_json(client: Client, type_: str, fields: Any) -> Answer:
    path = f"/v1/{client.tenant}/handlers/{type_}"
    return await client.ask("PUT", path, orjson.dumps(fields), {"Content-Type": "application/json"})


@PATHS
@pytest.mark.checklist("M48", "M49", "M50", "M61", "M62", "M63")
async def test_a_handler_is_defined_read_changed_and_removed(
    acme: Client, paths: dict[str, tuple[str, str]]
) -> None:
    assert (await call(acme, paths["get"], "one")).status == 404
    made = await call(acme, paths["put"], "one", RETURN_ONE.encode())
    assert (made.status, made.json) == (
        201,
        {"tenant": acme.tenant, "type": "one", "version": 1, "lang": "python"},
    )
    same = await call(acme, paths["put"], "one", RETURN_ONE.encode())
    assert (same.status, same.json) == (200, made.json)
    changed = await call(acme, paths["put"], "one", b"return 2")
    assert (changed.status, changed.json["version"]) == (201, 2)
    found = await call(acme, paths["get"], "one")
    scripts = {"before": "", "beforeEach": "", "afterEach": "", "eid": ""}
    assert (found.status, found.json) == (
        200,
        {"type": "one", "version": 2, "lang": "python", "body": "return 2"} | scripts,
    )
    assert (await call(acme, paths["get"], "one@1")).json["body"] == RETURN_ONE
    gone = await call(acme, paths["delete"], "one")
    assert (gone.status, gone.body) == (204, b"")
    assert (await call(acme, paths["get"], "one")).status == 404
    assert (await call(acme, paths["delete"], "one")).status == 404
    again = await call(acme, paths["put"], "one", RETURN_ONE.encode())
    assert again.status == 201
    assert again.json["version"] > 2


@pytest.mark.checklist("M49")
async def test_the_seeds_path_of_removal_takes_delete_as_well(acme: Client) -> None:
    await acme.upload("one", RETURN_ONE)
    path = f"/{acme.tenant}/handler/del/one/delete"
    assert (await acme.ask("DELETE", path)).status == 204
    assert (await acme.get("handlers/one")).status == 404


async def test_handlers_and_their_versions_are_listed(acme: Client) -> None:
    for name, source in (("b", "return 1"), ("a", "return 1"), ("b", "return 2"), ("c", "pass")):
        await acme.upload(name, source)
    assert (await acme.ask("DELETE", f"/v1/{acme.tenant}/handlers/c")).status == 204
    listed = (await acme.get("handlers")).json["handlers"]
    assert [(h["type"], h["version"], h["lang"]) for h in listed] == [
        ("a", 1, "python"),
        ("b", 2, "python"),
    ]
    versions = (await acme.get("handlers/b/versions")).json["versions"]
    assert [h["version"] for h in versions] == [2, 1]
    assert (await acme.get("handlers/nothing/versions")).status == 404


@pytest.mark.checklist("M73", "M74", "M75", "M76")
async def test_an_upload_in_json_may_have_all_parts(acme: Client) -> None:
    fields = {
        "lang": "python",
        "eid": "shared",
        "before": "seen = []",
        "beforeEach": "seen.append('begin')",
        "body": "if payload == 'bad': raise Failed(list(seen))\nreturn seen",
        "afterEach": "seen.append('end')",
    }
    assert (await put_json(acme, "parts", fields)).status == 201
    assert (await acme.get("handlers/parts")).json == fields | {"type": "parts", "version": 1}
    first = await acme.run("parts", [1, "bad"])
    assert [(r["code"], r["value"]) for r in first] == [("ok", ["begin"]), ("failed", ["begin"])]
    second = await acme.run("parts", [3])
    assert [r["value"] for r in second] == [["begin", "end", "begin"]]


BAD_SOURCES = {
    "a syntax error": ("x = 1\nreturn (\n", 2, "SyntaxError"),
    "no Python at all": ("function () {}", 1, "SyntaxError"),
    "wrong indentation": ("def handler(payload, context):\nreturn 1", 2, "Error"),
    "an async handler": ("\nasync def handler(payload, context):\n  pass", 2, "async"),
}


@PATHS
@pytest.mark.parametrize(("source", "line", "says"), BAD_SOURCES.values(), ids=BAD_SOURCES.keys())
async def test_a_source_that_does_not_compile_is_refused_with_line_and_message(
    acme: Client, paths: dict[str, tuple[str, str]], source: str, line: int, says: str
) -> None:
    answer = await call(acme, paths["put"], "bad", source.encode())
    assert (answer.status, answer.type) == (422, PROBLEM)
    assert answer.json["type"] == "urn:hearth:problem:invalid-handler"
    assert answer.json["line"] == line
    assert says in answer.json["detail"]
    assert (await acme.get("handlers/bad")).status == 404


BAD_FIELDS: dict[str, tuple[Any, str]] = {
    "an unknown field": ({"lang": "python", "body": "pass", "timeout": "3"}, "'timeout'"),
    "no string": ({"lang": "python", "body": 3}, "'body'"),
    "no body": ({"lang": "python"}, "'body'"),
    "an empty body": ({"lang": "python", "body": " \n"}, "'body'"),
    "no lang": ({"body": "pass"}, "lang"),
    "an unknown lang": ({"lang": "cobol", "body": "pass"}, "'cobol'"),
    "a NUL": ({"lang": "python", "body": "pass\0"}, "'body'"),
    "a list": (["python", "pass"], "object"),
    "a part that does not compile": ({"lang": "python", "body": "pass", "before": "("}, "before"),
}


@pytest.mark.checklist("M93")
@pytest.mark.parametrize(("fields", "names"), BAD_FIELDS.values(), ids=BAD_FIELDS.keys())
async def test_a_bad_upload_in_json_is_refused_and_the_field_named(
    acme: Client, fields: Any, names: str
) -> None:
    answer = await put_json(acme, "bad", fields)
    assert (answer.status, answer.type) == (422, PROBLEM)
    assert names in answer.json["detail"]
    assert (await acme.get("handlers")).json == {"handlers": []}


@pytest.mark.checklist("M93")
@pytest.mark.parametrize(
    ("query", "body"),
    [("?lang=cobol", b"x"), ("?method=cobol", b"x"), ("", b"x"), ("?lang=python", b"\xff")],
)
async def test_a_source_of_no_known_lang_or_encoding_is_refused(
    acme: Client, query: str, body: bytes
) -> None:
    answer = await acme.ask("PUT", f"/v1/{acme.tenant}/handlers/bad{query}", body)
    assert (answer.status, answer.type) == (422, PROBLEM)
    assert (await acme.get("handlers")).json == {"handlers": []}


async def test_what_is_posted_after_an_upload_runs_with_the_new_version(acme: Client) -> None:
    for version in range(1, 6):
        assert await acme.upload("grows", f"return {version}") == version
        assert [r["value"] for r in await acme.run("grows", [1])] == [version]


@pytest.mark.checklist("M19")
async def test_versions_queue_and_run_independently(acme: Client) -> None:
    await acme.upload("old", "return 'first'")
    await acme.upload("old", "return 'second'")
    assert [r["value"] for r in await acme.run("old@1", [1, 2])] == ["first"] * 2
    assert [r["value"] for r in await acme.run("old", [1])] == ["second"]
    assert [r["value"] for r in await acme.run("old@2", [1])] == ["second"]
    board = await acme.board()
    assert {type_: row["ok"] for type_, row in board.items()} == {"old": 1, "old@1": 2, "old@2": 1}


@pytest.mark.checklist("M64")
async def test_jobs_without_a_handler_wait_and_lose_no_attempt(acme: Client) -> None:
    ids = await acme.submit("late", range(3))
    pinned = await acme.submit("late@2", range(2))
    # Let the daemon come across them more than once.
    await acme.upload("other", "return 0")
    await acme.run("other", [1], delay=0.5)
    assert [(await acme.job(id_))["attempt"] for id_ in ids] == [1, 1, 1]
    await acme.upload("late", "return 'first'")
    assert [(r["value"], r["attempt"]) for r in await acme.ended(ids)] == [("first", 1)] * 3
    assert (await acme.job(pinned[0]))["state"] == "ready"
    await acme.upload("late", "return 'second'")
    assert [(r["value"], r["attempt"]) for r in await acme.ended(pinned)] == [("second", 1)] * 2


@pytest.mark.checklist("M63", "M64")
async def test_jobs_of_a_deleted_handler_wait_for_the_next_one(acme: Client) -> None:
    await acme.upload("gone", "return 1")
    assert [r["value"] for r in await acme.run("gone", [1])] == [1]
    assert (await acme.ask("DELETE", f"/v1/{acme.tenant}/handlers/gone")).status == 204
    ids = await acme.submit("gone", [1])
    assert (await acme.job(ids[0]))["state"] == "ready"
    await acme.upload("gone", "return 2")
    assert [(r["value"], r["attempt"]) for r in await acme.ended(ids)] == [(2, 1)]


@pytest.mark.checklist("M44", "M64")
async def test_jobs_that_nobody_handles_end_recorded_when_their_window_does(
    mongod: str, database: str, tmp_path: Path
) -> None:
    async with serving(settings_of(tmp_path, mongod, database, retry_window_s=1)) as hearth:
        acme = await hearth.tenant()
        ids = await acme.submit("nobody", range(3))
        assert (await acme.job(ids[0]))["state"] == "ready"
        ended = await acme.ended(ids)
        assert [(r["code"], r["exitcode"], r["attempt"]) for r in ended] == [("error", 501, 1)] * 3
        assert "no handler" in ended[0]["value"]["error"]
        row = await acme.row("nobody")
        assert (row["error"], row["waiting"], row["running"]) == (3, 0, 0)
        found = await acme.results(type="nobody", code="error")
        assert [record["id"] for record in found] == ids
        # What has ended stays so, also when somebody comes along after all.
        await acme.upload("nobody", "return 1")
        assert [r["value"] for r in await acme.run("nobody", [1])] == [1]
        assert await acme.ended(ids) == ended
