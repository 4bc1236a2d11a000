"""Servers that misbehave: each is cut off at a limit, and its jobs end in a result of their own."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from resource import RUSAGE_SELF, getrusage

import pytest

from runners.base import StopReason
from tests.http.support import call_of, listening, ran, request_of, runner_for

OK = b"HTTP/1.1 200 OK\r\n"
MIB = 1 << 20


async def endless_body(writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"Connection: close\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def endless_chunks(writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        await writer.drain()


async def endless_header(writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"X: ")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def endless_interim_answers(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
        await writer.drain()


async def too_many_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"".join(b"X-%d: y\r\n" % n for n in range(100_000)) + b"\r\n")
    await writer.drain()


async def a_header_too_many(writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"".join(b"X-%d: y\r\n" % n for n in range(70)))
    writer.write(b"Content-Length: 0\r\n\r\n")
    await writer.drain()


async def gzip_bomb(writer: asyncio.StreamWriter) -> None:
    body = gzip.compress(b"\0" * 64 * MIB)
    writer.write(OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()


async def promises_more(writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"Content-Length: 1000\r\n\r\nshort")
    await writer.drain()


async def promises_too_much(writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"Content-Length: 99999999999\r\n\r\n")
    await endless_body(writer)


async def leaves_early(writer: asyncio.StreamWriter) -> None:
    """Without a byte."""


async def leaves_in_the_header(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200")
    await writer.drain()


async def talks_nonsense(writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.9\r\n\0\xff\r\n\r\n")
    await writer.drain()


async def has_no_such_status(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n")
    await writer.drain()


async def trickles(writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"Content-Length: 1000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def trickles_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(OK)
    while True:
        writer.write(b"X: y\r\n")
        await writer.drain()
        await asyncio.sleep(0.2)


async def says_nothing(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


CUT_OFF = [
    *(endless_body, endless_chunks, endless_header, too_many_headers, a_header_too_many),
    *(gzip_bomb, promises_more, promises_too_much, leaves_early, leaves_in_the_header),
    *(talks_nonsense, has_no_such_status),
]
LATE = [trickles, trickles_headers, says_nothing]
Misbehave = Callable[[asyncio.StreamWriter], "asyncio.Future[None]"]


def peak_kib() -> int:
    return getrusage(RUSAGE_SELF).ru_maxrss


def server_of(misbehave: Misbehave) -> Callable[..., object]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        await misbehave(writer)

    return serve


@pytest.mark.checklist("M79")
@pytest.mark.parametrize("misbehave", CUT_OFF, ids=lambda f: f.__name__)
async def test_a_bad_answer_is_cut_off(misbehave: Misbehave) -> None:
    gzip_itself_kib = 80 << 10 if misbehave is gzip_bomb else 0
    before = peak_kib()
    async with (
        listening(server_of(misbehave)) as port,  # type: ignore[arg-type]
        runner_for(f"127.0.0.1:{port}") as runner,
    ):
        outcome = await ran(runner, call_of(f"http://127.0.0.1:{port}/", 1, 2, 3))
    assert [(bad.index, bad.exitcode) for bad in outcome.bad] == [(0, 502), (1, 502), (2, 502)]
    assert peak_kib() - before < (48 << 10) + gzip_itself_kib


@pytest.mark.checklist("M79")
@pytest.mark.parametrize("misbehave", [*LATE, endless_interim_answers], ids=lambda f: f.__name__)
async def test_a_late_answer_is_not_waited_for(misbehave: Misbehave) -> None:
    async with (
        listening(server_of(misbehave)) as port,  # type: ignore[arg-type]
        runner_for(f"127.0.0.1:{port}") as runner,
    ):
        url = f"http://127.0.0.1:{port}/"
        outcome = await ran(runner, call_of(url, 1, 2, job_timeout_s=0.5))
        alone = await ran(runner, call_of(url, 1, job_timeout_s=0.5))
    if outcome.stop is None:  # cut off for another reason
        assert [bad.exitcode for bad in outcome.bad] == [502, 502]
        return
    assert (outcome.stop.reason, outcome.stop.blamed) == (StopReason.TIMEOUT, None)
    assert alone.stop is not None
    assert (alone.stop.reason, alone.stop.blamed) == (StopReason.TIMEOUT, 0)


async def test_what_follows_an_answer_is_not_taken_for_the_next() -> None:
    async def lying(writer: asyncio.StreamWriter) -> None:
        extra = OK + b'Content-Length: 8\r\n\r\n"forged"'
        writer.write(OK + b"Content-Length: 2\r\n\r\n42" + extra)
        await writer.drain()

    async with (
        listening(server_of(lying)) as port,  # type: ignore[arg-type]
        runner_for(f"127.0.0.1:{port}") as runner,
    ):
        for _ in range(3):
            outcome = await ran(runner, call_of(f"http://127.0.0.1:{port}/"))
            assert b"forged" not in outcome.out
