"""How many requests may be under way: of one tenant to one host, of one tenant, of all.

Those that must wait are let in by their order, past others that still have to. Sends nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter

Host = tuple[str, str, int]  # tenant, host, port


class Gate:
    """Counts who is in; to be used on one event loop."""

    def __init__(self, *, total: int, per_tenant: int, per_host: int) -> None:
        self._total, self._per_tenant, self._per_host = total, per_tenant, per_host
        self._tenants: Counter[str] = Counter()
        self._hosts: Counter[Host] = Counter()
        self._waiting: dict[asyncio.Future[bool], Host] = {}
        self._is_closed = False

    def room(self, host: Host) -> int:
        """How many more could enter at once; those who wait for the same come first."""
        if self._is_closed:
            return 0
        found = min(
            self._total - self._tenants.total(),
            self._per_tenant - self._tenants[host[0]],
            self._per_host - self._hosts[host],
        )
        waiting = sum(other[0] == host[0] for other in self._waiting.values())
        return max(0, found - waiting)

    async def enter(self, host: Host) -> bool:
        """Wait for a place, to be left again; False when the gate was closed instead."""
        if self._is_closed:
            return False
        if self._fits(host) and not any(other == host for other in self._waiting.values()):
            self._take(host)
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = host
        try:
            return await turn
        except asyncio.CancelledError:
            if self._waiting.pop(turn, None) is None and turn.result():
                self.leave(host)  # the place was given in the very moment it was given up
            raise

    def leave(self, host: Host) -> None:
        self._tenants[host[0]] -= 1
        self._hosts[host] -= 1
        # Without those that are at nought, so that names do not pile up.
        self._tenants, self._hosts = +self._tenants, +self._hosts
        for turn, waiting in list(self._waiting.items()):
            if self._fits(waiting):
                del self._waiting[turn]
                self._take(waiting)
                turn.set_result(True)

    def close(self) -> None:
        """Nobody enters any more; those who wait are told."""
        self._is_closed = True
        for turn in self._waiting:
            turn.set_result(False)
        self._waiting.clear()

    def _fits(self, host: Host) -> bool:
        return (
            self._tenants.total() < self._total
            and self._tenants[host[0]] < self._per_tenant
            and self._hosts[host] < self._per_host
        )

    def _take(self, host: Host) -> None:
        self._tenants[host[0]] += 1
        self._hosts[host] += 1
