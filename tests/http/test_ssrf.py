"""Nobody can make us connect to ourselves: a table of URLs against listeners that must stay alone.

Uploads are skipped on purpose: each URL goes to the runner as if it had been stored long ago.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest

from runners.http.runner import HttpRunner
from tests.http.support import StubResolver, call_of, listening, ran, request_of, runner_for

V4 = [
    *("127.0.0.1", "127.0.0.2", "127.1", "127.0.1", "127.255.255.254", "0.0.0.0", "0", "0.0", "1"),
    *("2130706433", "0x7f000001", "0x7F000001", "0x7f.0.0.1", "0x7f.0x0.0x0.0x1", "0x7f.1"),
    *("017700000001", "0177.0.0.1", "0177.0.0.01", "0177.1", "00000177.0.0.1", "127.0.0.01"),
    *("127.0.0.1.", "127.00.00.01", "127.0.0.0x1", "4294967295", "4294967296", "6425673729"),
    *("①②⑦.⓪.⓪.①", "１２７.０.０.１", "127。0。0。1", "127．0．0．1", "１27.0.0.1", "٠.0.0.0"),
    *(
        "0x7f000001.",
        "0x",
        "127.0.0.1%00",
        "127.0.0.1%2e",
        "%31%32%37.0.0.1",
        "127.0.0.1,",
        "127..1",
    ),
]
V6 = [
    *("::1", "0:0:0:0:0:0:0:1", "0000:0000:0000:0000:0000:0000:0000:0001", "::", "::0.0.0.1"),
    *("::ffff:127.0.0.1", "::FFFF:7f00:1", "::ffff:0:127.0.0.1", "::127.0.0.1", "::7f00:1"),
    *("::ffff:0.0.0.0", "64:ff9b::7f00:1", "64:ff9b::127.0.0.1", "64:ff9b:1::7f00:1", "::1%lo"),
    *("2002:7f00:1::", "2002:7f00:0001::1", "2001:0:7f00:1::", "2001::80ff:fffe", "::1%25lo"),
    *("fe80::1", "fe80::1%25lo", "fec0::1", "fc00::1", "ff02::1", "0::1", "::ffff:7f.0.0.1"),
]
NAMES = [
    *(
        "localhost",
        "LOCALHOST",
        "LocalHost",
        "localhost.",
        "ip6-localhost",
        "localhost.localdomain",
    ),
    *("loc%61lhost", "ｌocalhost", "ⓛocalhost", "local\u00adhost", "localhost%00.example.com"),
]
WHOLE = [
    *("http://example.com@127.0.0.1:{p}/", "http://a:b@127.0.0.1:{p}/", "http://@127.0.0.1:{p}/"),
    *("http://127.0.0.1:{p}\\@example.com/", "http://example.com\\@127.0.0.1:{p}/"),
    *(
        "http:\\\\127.0.0.1:{p}\\",
        "http:/127.0.0.1:{p}/",
        "http:127.0.0.1:{p}/",
        "//127.0.0.1:{p}/",
    ),
    *("http:///127.0.0.1:{p}/", "http://127.0.0.1\t:{p}/", "ht\ttp://127.0.0.1:{p}/"),
    *("http://127.0.0.1:{p}#@example.com/", "http://example.com#@127.0.0.1:{p}/"),
    *(" http://127.0.0.1:{p}/", "hTTp://127.0.0.1:{p}/", "http://127.0.0.1:{p}/?x=@example.com"),
    *("http://127.0.0.1:0{p}/", "http://[::1]:{p}@example.com/", "ws://127.0.0.1:{p}/"),
    *(
        "http://127.0.0.1:{p}/%2e%2e/",
        "http://127.0.0.1 @example.com:{p}/",
        "https://127.0.0.1:{p}/",
    ),
]
FORMS = [f"http://{host}:{{p}}/" for host in (*V4, *NAMES)]
FORMS += [f"http://[{host}]:{{p}}/" for host in V6] + WHOLE


@dataclass(slots=True)
class Canary:
    """Listens on both loopbacks; `reached` must stay 0."""

    port: int = 0
    reached: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reached += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()


@pytest.fixture
async def canary() -> AsyncIterator[Canary]:
    made = Canary()
    async with listening(made.serve) as port, listening(made.serve, ["::1"], port):
        made.port = port
        yield made


async def walk(runner: HttpRunner, canary: Canary, seed: int) -> list[str]:
    """Call every form in an order of its own; those that got through, or seemed to."""
    forms = random.Random(seed).sample(FORMS, len(FORMS))
    through = []
    for form in forms:
        before = canary.reached
        outcome = await ran(runner, call_of(form.replace("{p}", str(canary.port))))
        if outcome.ok or canary.reached > before:
            through.append(form)
    return through


def test_the_table_is_large_enough() -> None:
    assert len(set(FORMS)) == len(FORMS) >= 90


async def test_the_canary_can_be_reached(canary: Canary) -> None:
    for host in ("127.0.0.1", "[::1]"):
        async with runner_for(f"{host}:{canary.port}") as runner:
            assert (await ran(runner, call_of(f"http://{host}:{canary.port}/"))).ok == 1
    assert canary.reached == 2


@pytest.mark.checklist("M79")
@pytest.mark.parametrize("seed", range(2))
async def test_no_form_of_a_url_reaches_us(canary: Canary, seed: int) -> None:
    async with runner_for(connect_s=1.0) as runner:
        assert await walk(runner, canary, seed) == []
    assert canary.reached == 0


@pytest.mark.checklist("M79")
@pytest.mark.parametrize("private", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"])
async def test_no_answer_of_a_name_server_reaches_us(canary: Canary, private: str) -> None:
    """A name that is public when it is asked for first, and ours from then on."""
    resolver = StubResolver("192.0.2.1", private)
    async with runner_for(resolver=resolver, connect_s=0.3) as runner:
        for _ in range(3):
            outcome = await ran(runner, call_of(f"http://flips.example:{canary.port}/"))
            assert outcome.ok == 0
        assert [bad.exitcode for bad in outcome.bad] == [403]
    assert (resolver.asked, canary.reached) == (3, 0)


@pytest.mark.checklist("M79")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(canary: Canary, status: int) -> None:
    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        where = f"Location: http://127.0.0.1:{canary.port}/\r\nContent-Length: 0\r\n\r\n"
        writer.write(f"HTTP/1.1 {status} Elsewhere\r\n{where}".encode())
        await writer.drain()

    async with listening(redirect) as port, runner_for(f"127.0.0.1:{port}") as runner:
        outcome = await ran(runner, call_of(f"http://127.0.0.1:{port}/"))
        assert [bad.exitcode for bad in outcome.bad] == [400]
    assert canary.reached == 0


async def test_an_exception_is_for_its_host_and_port_alone(canary: Canary) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError("was reached")

    async with listening(never) as other, runner_for(f"127.0.0.1:{other}") as runner:
        assert (await ran(runner, call_of(f"http://127.0.0.1:{canary.port}/"))).ok == 0
        assert (await ran(runner, call_of(f"http://[::1]:{other}/"))).ok == 0
    assert canary.reached == 0
    async with runner_for("127.0.0.0/8") as runner:
        assert (await ran(runner, call_of(f"http://127.0.0.1:{canary.port}/"))).ok == 1


async def test_the_environments_proxy_is_not_used(
    canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{canary.port}")
    resolver = StubResolver("192.0.2.1")
    async with runner_for(resolver=resolver, connect_s=0.3) as runner:
        await ran(runner, call_of("http://hooks.example/"))
    assert canary.reached == 0


async def test_a_filter_in_the_resolver_alone_would_not_do(
    canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table fails a weaker build: sockets opened without the guard, names filtered."""
    plain = aiohttp.TCPConnector

    def unguarded(**options: object) -> aiohttp.TCPConnector:
        options.pop("socket_factory")
        return plain(**options)  # type: ignore[arg-type]

    monkeypatch.setattr(aiohttp, "TCPConnector", unguarded)
    async with runner_for(resolver=StubResolver("192.0.2.1"), connect_s=0.2) as runner:
        through = await walk(runner, canary, 0)
    assert {"http://127.0.0.1:{p}/", "http://[::1]:{p}/"} <= set(through)
    assert "http://[::ffff:127.0.0.1]:{p}/" in through
    assert canary.reached >= len(through) > 5
