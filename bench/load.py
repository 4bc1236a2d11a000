"""The load client: writes requests made beforehand, reads only status and length of the answers.

Runs as its own process, so that what it costs is neither the service's nor the observer's, and
does little enough per request never to be what is measured. One request at a time is under way on
each connection. It is no HTTP client: it understands the answers of the two servers here.

`python -m bench.load` reads a `Load` as a JSON line, answers `ready`, begins at the next line and
prints a `Done` as JSON. Times are of the monotonic clock, which all processes of a host share.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median

from bench.workload import lines

_TIMEOUT_S = 60.0
_RECEIVE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to send: `posts` requests of `jobs` lines each, and which status they must have."""

    host: str
    port: int
    path: str
    key: str
    posts: int
    jobs: int
    connections: int
    status: int = 202


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How it went. `batches` are the ids of the first, a middle and the last post."""

    started: float
    ended: float
    cpu_s: float
    median_s: float
    batches: dict[int, str]


class UnexpectedAnswer(Exception):
    """An answer that is not the one asked for, or a connection that ended."""


class Connection:
    """One keep-alive connection with at most one request under way."""

    def __init__(self, load: Load) -> None:
        self.socket = socket.create_connection((load.host, load.port), timeout=_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.post = -1
        self.sent_at = 0.0
        self._status = str(load.status).encode()
        self._answer = b""
        self._end = 0

    def send(self, post: int, request: bytes) -> None:
        self.post = post
        self._answer, self._end = b"", 0
        self.sent_at = time.monotonic()
        self.socket.sendall(request)

    def receive(self) -> bool:
        """Read what has come; True once the answer is whole."""
        received = self.socket.recv(_RECEIVE_BYTES)
        if not received:
            raise UnexpectedAnswer(f"the connection was closed after {self._answer[:500]!r}")
        self._answer += received
        if not self._end:
            self._end = self._find_end()
        return 0 < self._end <= len(self._answer)

    def batch(self) -> str:
        _, _, body = self._answer.partition(b"\r\n\r\n")
        return str(json.loads(body)["batch"])

    def _find_end(self) -> int:
        head = self._answer.find(b"\r\n\r\n")
        if head < 0:
            return 0
        if self._answer[9:12] != self._status:
            raise UnexpectedAnswer(self._answer[:500].decode(errors="replace"))
        _, _, length = self._answer[:head].partition(b"Content-Length: ")
        return head + 4 + int(length.partition(b"\r\n")[0])


def requests(load: Load) -> list[bytes]:
    made = []
    for post in range(load.posts):
        body = lines(post * load.jobs, load.jobs)
        head = (
            f"POST {load.path} HTTP/1.1\r\nHost: {load.host}:{load.port}\r\n"
            f"Authorization: Bearer {load.key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        made.append(head.encode() + body)
    return made


def drive(load: Load, connections: list[Connection], made: list[bytes]) -> Done:
    to_send: Iterator[tuple[int, bytes]] = enumerate(made)
    remembered = {0, load.posts // 2, load.posts - 1}
    batches: dict[int, str] = {}
    took: list[float] = []
    cpu_s, started = time.process_time(), time.monotonic()
    with selectors.DefaultSelector() as selector:
        for connection, (post, request) in zip(connections, to_send, strict=False):
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.send(post, request)
        while len(took) < load.posts:
            ready = selector.select(_TIMEOUT_S)
            if not ready:
                raise UnexpectedAnswer(f"no answer for {_TIMEOUT_S} s")
            for key, _ in ready:
                connection = key.data
                if not connection.receive():
                    continue
                took.append(time.monotonic() - connection.sent_at)
                if connection.post in remembered:
                    batches[connection.post] = connection.batch()
                following = next(to_send, None)
                if following is not None:
                    connection.send(*following)
    return Done(
        started=started,
        ended=time.monotonic(),
        cpu_s=time.process_time() - cpu_s,
        median_s=median(took),
        batches=batches,
    )


def main() -> None:
    load = Load(**json.loads(sys.stdin.readline()))
    made = requests(load)
    connections = [Connection(load) for _ in range(min(load.connections, load.posts))]
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(asdict(drive(load, connections, made))), flush=True)


if __name__ == "__main__":
    main()
