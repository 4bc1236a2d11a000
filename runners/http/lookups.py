"""Names to addresses, in threads of their own: a tenant's slow name server holds nobody else up.

Judges no address: the guard does that when one is dialled. Remembers none: a name's next dial asks
again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from aiohttp.abc import AbstractResolver, ResolveResult

_THREADS = 32
_PER_TENANT = 4

MakeResolver = Callable[[str], AbstractResolver]


class Lookups:
    """The threads, and a resolver for each tenant."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="lookup")
        self._turns: dict[str, asyncio.Semaphore] = {}

    def resolver(self, tenant: str) -> AbstractResolver:
        turns = self._turns.setdefault(tenant, asyncio.Semaphore(_PER_TENANT))
        return _Resolver(self._threads, turns)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Resolver(AbstractResolver):
    def __init__(self, threads: ThreadPoolExecutor, turns: asyncio.Semaphore) -> None:
        self._threads = threads
        self._turns = turns

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        await self._turns.acquire()
        # The turn is over when the thread is done, even if nobody waits for it any longer.
        lookup = loop.run_in_executor(self._threads, _look_up, host, port, family)
        lookup.add_done_callback(self._done)
        return await asyncio.shield(lookup)

    async def close(self) -> None:
        """The threads are not ours to end."""

    def _done(self, lookup: asyncio.Future[list[ResolveResult]]) -> None:
        self._turns.release()
        if not lookup.cancelled():
            lookup.exception()  # whoever still waits is told it; nobody else needs to be


def _look_up(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    found = socket.getaddrinfo(
        host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    )
    return [
        ResolveResult(
            hostname=host,
            host=str(where[0]),
            port=port,
            family=kind,
            proto=protocol,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for kind, _, protocol, _, where in found
    ]
