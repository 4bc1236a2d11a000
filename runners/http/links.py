"""Kept-alive connections: one session for each tenant and host, whose sockets its guard opens.

Never shared by two tenants, so that nothing one of them makes a server send reaches another. Knows
nothing of jobs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import aiohttp

from handlers.urls import Target
from runners.http.gate import Host
from runners.http.guard import Guard
from runners.http.lookups import MakeResolver
from runners.http.settings import HttpSettings

_READ_AT_ONCE = 64 << 10
_HEADER_LINE_MAX = 8190
Key = tuple[str, str, str]


@dataclass(slots=True, kw_only=True, eq=False)
class Link:
    """A session, and what it has been used for: the `keys` of handlers, and when last."""

    session: aiohttp.ClientSession
    used_at: float
    users: int = 0
    keys: set[Key] = field(default_factory=set)


class Links:
    """The sessions there are; to be used on one event loop."""

    def __init__(self, settings: HttpSettings, resolver: MakeResolver) -> None:
        self._settings = settings
        self._resolver = resolver
        self._links: dict[tuple[Host, str], Link] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def take(self, tenant: str, target: Target, guard: Guard, now: float) -> Link:
        """The session for a target, to be given back."""
        key = ((tenant, target.host, target.port), target.scheme)
        link = self._links.get(key)
        if link is None:
            self._make_way()
            link = Link(session=self._session(tenant, guard), used_at=now)
            self._links[key] = link
        link.users += 1
        return link

    def give_back(self, link: Link, now: float) -> None:
        link.users -= 1
        link.used_at = now

    def keys(self) -> set[Key]:
        """The handlers that have a session which is idle."""
        return {key for link in self._links.values() if not link.users for key in link.keys}

    def reap(self, now: float) -> int:
        """Close sessions that nobody has used for a while; how many those were."""
        expired = [
            key
            for key, link in self._links.items()
            if not link.users and now - link.used_at > self._settings.idle_s
        ]
        for key in expired:
            self._discard(key)
        return len(expired)

    async def close(self) -> None:
        for key in list(self._links):
            self._discard(key)
        await asyncio.gather(*self._closing)

    def __len__(self) -> int:
        return len(self._links)

    def _make_way(self) -> None:
        """Those in use are bounded by the gate, and are never closed."""
        idle = [key for key, link in self._links.items() if not link.users]
        if len(self._links) >= self._settings.links_max and idle:
            self._discard(min(idle, key=lambda key: self._links[key].used_at))

    def _discard(self, key: tuple[Host, str]) -> None:
        task = asyncio.create_task(self._links.pop(key).session.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _session(self, tenant: str, guard: Guard) -> aiohttp.ClientSession:
        s = self._settings
        connector = aiohttp.TCPConnector(
            limit=s.host_requests_max,
            keepalive_timeout=s.idle_s,
            resolver=self._resolver(tenant),
            use_dns_cache=False,
            socket_factory=guard.open,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            max_headers=s.headers_max,
            max_line_size=_HEADER_LINE_MAX,
            max_field_size=_HEADER_LINE_MAX,
            read_bufsize=_READ_AT_ONCE,
            timeout=aiohttp.ClientTimeout(total=None, connect=s.connect_s),
        )
