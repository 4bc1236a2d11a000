"""Load under which daemons are killed, and the account that must balance afterwards.

Every payload is different, so that a result tells which payload it belongs to. A POST whose answer
was lost may or may not have been taken, but whole or not at all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from random import Random

import aiohttp

from tests.waiting import eventually

from .support import Client

# Slow enough that a drain takes seconds, quick enough that tens of thousands can be run.
ECHO = """
import time

def handler(payload, context):
    time.sleep(0.0001)
    return context.raw.hex()
"""
TYPE = "echo"
_CONNECTIONS = 4


class Load:
    """Posts of strange lines, and who was told what about them."""

    def __init__(self, posts: int, lines: int, rng: Random) -> None:
        self._bodies = [_body(number, lines, rng) for number in range(posts)]
        self._left = iter(self._bodies)
        self.size = posts * lines
        self.acknowledged: dict[str, bytes] = {}  # payload by id
        self.unanswered: list[bytes] = []  # bodies

    async def post(self, client: Client, enough: Callable[[], bool] = lambda: False) -> None:
        """Post what is left from several connections, until it is enough or the daemon is gone."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_CONNECTIONS):
                group.create_task(self._post(client, enough))

    @asynccontextmanager
    async def posting(self, client: Client) -> AsyncIterator[None]:
        """Post beside whatever is done meanwhile, such as killing the daemon."""
        task = asyncio.create_task(self.post(client))
        yield
        async with asyncio.timeout(30):
            await task

    def reached(self, jobs: int) -> bool:
        return len(self.acknowledged) >= jobs

    async def _post(self, client: Client, enough: Callable[[], bool]) -> None:
        while not enough():
            body = next(self._left, None)
            if body is None:
                return
            try:
                answer = await client.post(TYPE, body)
            except aiohttp.ClientError:
                self.unanswered.append(body)
                return
            assert answer.status == 202, answer.body
            ids = answer.json["ids"]
            self.acknowledged.update(zip(ids, body.split(b"\n"), strict=False))

    async def balance(self, client: Client, within_s: float = 40.0) -> None:
        """Wait for the last job and see that every one ended exactly once, with its own result."""

        async def at_rest() -> bool:
            row = await client.row(TYPE)
            if not row:
                return False
            now = row["waiting"] + row["deferred"] + row["running"]
            return bool(now == 0 and row["ok"] >= len(self.acknowledged))

        await eventually(at_rest, within_s)
        results = await client.results(type=TYPE)
        times = Counter(record["id"] for record in results)
        assert [id_ for id_, count in times.items() if count > 1] == []
        assert [r for r in results if (r["code"], r["attempt"]) != ("ok", 1)] == []
        values = {record["id"]: bytes.fromhex(record["value"]) for record in results}
        lost = self.acknowledged.keys() - values.keys()
        assert not lost
        assert {id_: values[id_] for id_ in self.acknowledged} == self.acknowledged
        invented = {id_: value for id_, value in values.items() if id_ not in self.acknowledged}
        for body in _bodies(invented):
            self.unanswered.remove(body)  # which it is not in if nobody sent it
        row = await client.row(TYPE)
        assert row["ok"] == len(values)
        assert row["failed"] == row["retry"] == row["error"] == 0


def _body(number: int, lines: int, rng: Random) -> bytes:
    return b"".join(
        b"%d.%d %s\n" % (number, line, rng.randbytes(12).replace(b"\n", b"\r"))
        for line in range(lines)
    )


def _bodies(values: dict[str, bytes]) -> Iterator[bytes]:
    """Put results together again to the posts they came from."""
    posts: dict[str, dict[int, bytes]] = {}
    for id_, value in values.items():
        post, _, line = id_.partition("-")
        posts.setdefault(post, {})[int(line)] = value
    for lines in posts.values():
        assert sorted(lines) == list(range(len(lines)))
        yield b"".join(lines[line] + b"\n" for line in range(len(lines)))
