"""The service under test as its users see it: tenants, handlers, counts and results over HTTP.

Also checks what it reads: a count that cannot be, or a result that is wrong, raises. Loads are sent
by `bench.load`; nothing here is fast or meant to be.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from urllib.parse import urlsplit

from bench import workload
from bench.load import Load

_TIMEOUT_S = 60.0
_DRAIN_S = 180.0
_POLL_MIN_S, _POLL_MAX_S = 0.02, 0.25


class WrongAnswer(Exception):
    """The service lost, changed or invented something, or refused what it should take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What the scoreboard said of a jobtype, and when on the monotonic clock."""

    at: float
    ok: int
    waiting: int
    running: int
    other: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One tenant of a running daemon."""

    url: str
    tenant: str
    key: str

    @classmethod
    def create(cls, url: str, admin_key: str, tenant: str) -> Service:
        answer = _call(url, admin_key, "PUT", f"/v1/admin/tenants/{tenant}", status=201)
        return cls(url=url, tenant=tenant, key=str(json.loads(answer)["key"]))

    def put_handler(self, type_: str) -> None:
        path = f"/v1/{self.tenant}/handlers/{type_}?lang=python"
        _call(self.url, self.key, "PUT", path, workload.source().encode(), status=201)

    def load(
        self, type_: str, *, posts: int, jobs: int, connections: int, wait: bool = False
    ) -> Load:
        """What to give the load client to post jobs of this type."""
        address = urlsplit(self.url)
        return Load(
            host=address.hostname or "",
            port=address.port or 0,
            path=f"/v1/{self.tenant}/jobs/{type_}{'?wait=5' if wait else ''}",
            key=self.key,
            posts=posts,
            jobs=jobs,
            connections=connections,
            status=200 if wait else 202,
        )

    def count(self, type_: str) -> Count:
        asked = time.monotonic()
        answer = json.loads(self._get("scoreboard"))
        row = answer["types"].get(type_, {})
        # The counts were true at some moment of the call; its middle is wrong by least.
        return Count(
            at=(asked + time.monotonic()) / 2,
            ok=row.get("ok", 0),
            waiting=row.get("waiting", 0),
            running=row.get("running", 0),
            other=sum(row.get(name, 0) for name in ("deferred", "failed", "retry", "error")),
        )

    def until_ok(self, type_: str, target: int, total: int) -> Count:
        """Wait until `target` of the `total` jobs ever posted have ended well."""
        before = self._checked(type_, total)
        deadline = before.at + _DRAIN_S
        now = before
        while now.ok < target:
            if now.at > deadline:
                raise WrongAnswer(f"{type_}: {now.ok} of {target} jobs after {_DRAIN_S:.0f} s")
            time.sleep(_pause(before, now, target))
            now = self._checked(type_, total)
        return now

    def until_queued(self, type_: str, total: int) -> Count:
        """Wait until all jobs of a type without handler are in the store."""
        deadline = time.monotonic() + _DRAIN_S
        while (now := self._checked(type_, total)).waiting < total:
            if now.at > deadline:
                raise WrongAnswer(f"{type_}: {now.waiting} of {total} queued")
            time.sleep(_POLL_MAX_S)
        return now

    def check_results(self, batches: Mapping[int, str], jobs: int) -> None:
        """Stream the results of some posts and compare every value."""
        for post, batch in batches.items():
            expected = [workload.number(post * jobs + i) + 1 for i in range(jobs)]
            stream = self._get(f"results?batch={batch}", accept="application/x-ndjson")
            records = [json.loads(line) for line in stream.splitlines()]
            values = [r["value"]["n"] for r in records if r["code"] == "ok"]
            if values != expected:
                raise WrongAnswer(f"post {post}: {len(values)} good results of {jobs}, or wrong")

    def _checked(self, type_: str, total: int) -> Count:
        count = self.count(type_)
        if count.other or count.ok + count.waiting + count.running > total:
            raise WrongAnswer(f"{type_}: {total} jobs were posted, the scoreboard says {count}")
        return count

    def _get(self, what: str, accept: str = "application/json") -> bytes:
        return _call(self.url, self.key, "GET", f"/v1/{self.tenant}/{what}", accept=accept)


def _pause(before: Count, now: Count, target: int) -> float:
    """Half the time still needed at the rate so far: few questions, and a sharp end."""
    done, passed = now.ok - before.ok, now.at - before.at
    expected = (target - now.ok) / (done / passed) if done and passed else _POLL_MIN_S
    return min(max(expected / 2, _POLL_MIN_S), _POLL_MAX_S)


def _call(
    url: str,
    key: str,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    status: int = 200,
    accept: str = "application/json",
) -> bytes:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=_TIMEOUT_S)
    try:
        headers = {"Authorization": f"Bearer {key}", "Accept": accept}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = response.read()
        if response.status != status:
            raise WrongAnswer(f"{method} {path}: {response.status} {answer[:500]!r}")
        return answer
    finally:
        connection.close()
