"""Which handler runs a jobtype, remembered for a moment.

A new version uploaded here holds at once, one uploaded at another daemon after `ttl_s`. While the
store is away, what was known of late goes on to hold. Knows no runner and checks no source.
"""

from __future__ import annotations

from handlers.definition import Handler
from handlers.names import JobType, split_version
from queue_service import clock
from queue_service.errors import StoreUnavailable
from queue_service.store.base import HandlerStore

_ENTRIES_MAX = 10_000


class HandlerCache:
    """Looks handlers up for dispatch."""

    def __init__(self, store: HandlerStore, ttl_s: float = 1.0) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._known: dict[JobType, tuple[float, Handler | None]] = {}

    async def find(self, jobtype: JobType) -> Handler | None:
        """The handler of a type: the pinned version, or the newest; None when there is none."""
        now = clock.monotonic()
        known = self._known.get(jobtype)
        if known and now < known[0]:
            return known[1]
        name, version = split_version(jobtype.type)
        try:
            handler = await self._store.get(jobtype.tenant, name, version)
        except StoreUnavailable:
            if known is None:
                raise
            handler = known[1]
        if len(self._known) >= _ENTRIES_MAX:
            self._known.clear()
        self._known[jobtype] = (now + self._ttl_s, handler)
        return handler

    def is_known(self, jobtype: JobType) -> bool:
        """Whether the last lookup found a handler."""
        known = self._known.get(jobtype)
        return known is not None and known[1] is not None

    def forget(self, tenant: str, name: str) -> None:
        """Make the next lookup of a handler, pinned or not, ask the store."""
        for jobtype in [t for t in self._known if t.tenant == tenant]:
            if split_version(jobtype.type)[0] == name:
                del self._known[jobtype]
