"""What the service's tests share: a daemon inside the test's event loop, and a client of a tenant.

`behave` is the one handler of nearly all tests: each payload says what becomes of it.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import aiohttp
import orjson
from yarl import URL

from queue_service.daemon import Daemon
from queue_service.settings import Settings
from tests.waiting import eventually

# Leases short enough to see them end, pauses short enough not to wait for them.
QUICK: dict[str, Any] = {
    "lease_s": 6,
    "renew_every_s": 1,
    "sysid_lease_s": 6,
    "store_timeout_s": 2,
    "sweep_every_s": 0.5,
    "poll_every_s": 0.1,
    "retry_base_s": 0.05,
    "retry_cap_s": 0.5,
}
WAIT_S = 20
_STOP_S = 20
PROBLEM = "application/problem+json"
NDJSON = "application/x-ndjson"

BEHAVE = """
import os
import time

def handler(payload, context):
    if not isinstance(payload, dict) or "do" not in payload:
        return list(context.raw)
    do = payload["do"]
    if do == "fail":
        raise Failed({"why": payload.get("n")})
    if do == "retry" and context.attempt < payload.get("until", 1000):
        raise Retry(payload.get("delay"), value={"attempt": context.attempt})
    if do == "raise" and context.attempt < payload.get("until", 1000):
        raise RuntimeError(f"attempt {context.attempt}")
    if do == "sleep":
        time.sleep(payload["s"])
    if do == "exit":
        os._exit(7)
    if do == "kill":
        os.kill(os.getpid(), 9)
    return {"n": payload.get("n"), "id": context.id, "attempt": context.attempt}
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def type(self) -> str:
        return self.headers.get("Content-Type", "")

    @property
    def lines(self) -> list[Any]:
        """An NDJSON body."""
        return [orjson.loads(line) for line in self.body.splitlines()]


@dataclass(frozen=True, slots=True)
class Client:
    """Speaks to one daemon for one tenant."""

    http: aiohttp.ClientSession
    url: str
    key: str
    tenant: str

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **query: Any,
    ) -> Answer:
        """One request; nothing in the path is quoted, so that anything can be asked for."""
        url = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        sent = {"Authorization": f"Bearer {self.key}"} | dict(headers or {})
        sent = {name: value for name, value in sent.items() if value}
        data = None if body is None else io.BytesIO(body)
        async with self.http.request(
            method, URL(url, encoded=True), data=data, headers=sent
        ) as answer:
            return Answer(answer.status, dict(answer.headers), await answer.read())

    async def get(self, what: str, headers: Mapping[str, str] | None = None, **q: Any) -> Answer:
        return await self.ask("GET", f"/v1/{self.tenant}/{what}", headers=headers, **q)

    async def post(self, type_: str, body: bytes, **query: Any) -> Answer:
        return await self.ask("POST", f"/v1/{self.tenant}/jobs/{type_}", body, **query)

    async def upload(self, name: str, source: str = BEHAVE) -> int:
        """Store a Python handler; its version."""
        path = f"/v1/{self.tenant}/handlers/{name}"
        answer = await self.ask("PUT", path, source.encode(), lang="python")
        assert answer.status in (200, 201), answer.body
        return int(answer.json["version"])

    async def submit(self, type_: str, jobs: Iterable[Any], **query: Any) -> list[str]:
        """Post JSON payloads; their ids."""
        answer = await self.post(type_, lines_of(jobs), **query)
        assert answer.status == 202, answer.body
        ids: list[str] = answer.json["ids"]
        return ids

    async def run(self, type_: str, jobs: Iterable[Any], **query: Any) -> list[Any]:
        """Post JSON payloads and wait for all results."""
        answer = await self.post(type_, lines_of(jobs), wait=WAIT_S, **query)
        assert answer.status == 200, answer.body
        results: list[Any] = answer.json["results"]
        return results

    async def results(self, **query: Any) -> list[Any]:
        """All results there are, as one stream."""
        answer = await self.get("results", {"Accept": NDJSON}, **query)
        assert answer.status == 200, answer.body
        return answer.lines

    async def ended(self, ids: Iterable[str], within_s: float = WAIT_S) -> list[Any]:
        """Wait until the posts of these ids have all their results; those, in the ids' order."""
        wanted = list(ids)
        found: dict[str, Any] = {}

        async def all_there() -> bool:
            for post in {id_.partition("-")[0] for id_ in wanted if id_ not in found}:
                answer = await self.get("results", {"Accept": NDJSON}, batch=post)
                # Another daemon's post may not be known here yet.
                records = answer.lines if answer.status == 200 else []
                found.update({record["id"]: record for record in records})
            return found.keys() >= set(wanted)

        await eventually(all_there, within_s)
        return [found[id_] for id_ in wanted]

    async def job(self, id_: str) -> Any:
        answer = await self.get(f"jobs/{id_}")
        assert answer.status == 200, answer.body
        return answer.json

    async def board(self) -> dict[str, dict[str, Any]]:
        """The scoreboard's rows by type."""
        types: dict[str, dict[str, Any]] = (await self.get("scoreboard")).json["types"]
        return types

    async def row(self, type_: str) -> dict[str, Any]:
        return (await self.board()).get(type_, {})


@dataclass(frozen=True, slots=True)
class Hearth:
    """A daemon that runs, and how to become a client of it."""

    http: aiohttp.ClientSession
    url: str
    sysid: str
    admin_key: str

    @property
    def admin(self) -> Client:
        return Client(self.http, self.url, self.admin_key, "")

    async def tenant(self, name: str = "") -> Client:
        """A new tenant, of a name nobody has used unless one is given."""
        name = name or f"t{uuid4().hex[:10]}"
        made = await self.admin.ask("PUT", f"/v1/admin/tenants/{name}")
        assert made.status == 201, made.body
        return Client(self.http, self.url, made.json["key"], name)

    def at(self, client: Client) -> Client:
        """The same tenant and key, at this daemon."""
        return Client(self.http, self.url, client.key, client.tenant)


def lines_of(jobs: Iterable[Any]) -> bytes:
    return b"".join(orjson.dumps(job) + b"\n" for job in jobs)


def moment(text: str) -> datetime:
    """A time as answers give it."""
    return datetime.fromisoformat(text)


def settings_of(data: Path, mongo: str, database: str, **more: Any) -> Settings:
    return Settings(data=data, mongo=mongo, database=database, port=0, **(QUICK | more))


def session() -> aiohttp.ClientSession:
    """Connections on which no answer is waited for longer than the longest `wait`."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=70))


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Hearth]:
    """A daemon in this event loop; it is drained and must end in peace afterwards."""
    stop = asyncio.Event()
    announced: list[tuple[str, str]] = []
    run = Daemon(settings).run(lambda url, sysid: announced.append((url, sysid)), stop)
    daemon = asyncio.create_task(run)
    await eventually(lambda: bool(announced) or daemon.done())
    if daemon.done():
        await daemon
    [(url, sysid)] = announced
    key = (settings.data / "admin.key").read_text().strip()
    try:
        async with session() as http:
            yield Hearth(http, url, sysid, key)
    finally:
        stop.set()
        async with asyncio.timeout(_STOP_S):
            await daemon
