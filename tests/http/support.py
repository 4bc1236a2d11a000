"""What these tests share: listeners that count who reaches them, calls, and a stub of DNS."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp.abc import AbstractResolver, ResolveResult

from handlers.definition import Definition, Handler
from runners.base import Call, Outcome, Span
from runners.http.guard import exceptions_of
from runners.http.runner import HttpRunner
from runners.http.settings import HttpSettings

KEY = "a key for tests"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class StubResolver(AbstractResolver):
    """Answers a name with one address after the other; the last one for ever."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        address = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=0)
        ]

    async def close(self) -> None:
        pass


def call_of(url: str, *payloads: object, **options: object) -> Call:
    lines = [p if isinstance(p, bytes) else json.dumps(p).encode() for p in payloads or (1,)]
    definition = Definition(lang="http", body=url)
    fields: dict[str, object] = {
        "handler": Handler(tenant="acme", name="hook", version=1, definition=definition),
        "data": b"".join(line + b"\n" for line in lines),
        "count": len(lines),
        "spans": (Span(post="p", first=5, count=len(lines)),),
        "attempt": 2,
        "job_timeout_s": 10.0,
        "budget_s": 60.0,
    }
    return Call(**(fields | options))  # type: ignore[arg-type]


def values(outcome: Outcome) -> list[object]:
    return [json.loads(line) for line in outcome.out.split(b"\n")[:-1]]


def codes(outcome: Outcome) -> list[tuple[int, int, float | None]]:
    return [(bad.index, bad.exitcode, bad.delay_s) for bad in outcome.bad]


async def ran(runner: HttpRunner, call: Call) -> Outcome:
    """Run, and check what holds for every outcome."""
    outcome = await runner.run(call)
    assert outcome.ok + len(outcome.bad) == outcome.done <= call.count
    assert (outcome.stop is None) == (outcome.done == call.count)
    assert len(values(outcome)) == outcome.done
    assert [bad.index for bad in outcome.bad] == sorted({bad.index for bad in outcome.bad})
    return outcome


@asynccontextmanager
async def runner_for(
    *allowed: str, resolver: AbstractResolver | None = None, **more: object
) -> AsyncIterator[HttpRunner]:
    settings = HttpSettings(
        signing_key=KEY,
        exceptions=exceptions_of(allowed),
        **more,  # type: ignore[arg-type]
    )
    make = (lambda tenant: resolver) if resolver else None
    runner = HttpRunner(settings, time.time, resolver=make)
    try:
        yield runner
    finally:
        await runner.close()


@asynccontextmanager
async def listening(
    serve: Serve, hosts: Sequence[str] = ("127.0.0.1",), port: int = 0
) -> AsyncIterator[int]:
    """A bare TCP server on each of these hosts, all at one port."""

    async def serve_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the runner hung up, as some tests want it to
        finally:
            writer.close()

    server = await asyncio.start_server(serve_once, list(hosts), port)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def request_of(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    """Read one request: its headers, in lower case, and its body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
    headers = {name.lower(): value.strip() for name, _, value in (h.partition(":") for h in head)}
    if "content-length" in headers:
        return headers, await reader.readexactly(int(headers["content-length"]))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return headers, body
