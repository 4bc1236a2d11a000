"""Leases: keeps this daemon's locks and sysid alive, frees what dead daemons left.

Housekeeping in small bounded steps, each run by a chore of the daemon's table. Decides nothing
about what runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from queue_service.dispatch import Dispatch
from queue_service.store.base import BatchStore, DaemonRegistry, Sysid

log = structlog.get_logger(__name__)

_SWEEP_MAX = 1000
_PURGE_MAX = 1000
_FOLD_MAX = 1000
_KEEP_MIN_S = 10.0


class SysidLost(Exception):
    """Another daemon has this daemon's slot: nothing it holds is its own any more."""


class Leases:
    """The chores around dt and lock."""

    def __init__(
        self,
        store: BatchStore,
        daemons: DaemonRegistry,
        dispatch: Dispatch,
        sysid: Sysid,
        *,
        lease_s: float,
        sysid_lease_s: float,
        keep_done_s: float,
    ) -> None:
        self._store = store
        self._daemons = daemons
        self._dispatch = dispatch
        self._sysid = sysid
        self._lease_s = lease_s
        self._sysid_lease_s = sysid_lease_s
        self._keep_done_s = keep_done_s

    async def renew_locks(self) -> int:
        """Prolong every lease held; runs whose batch was taken over are killed."""
        ids = {batch.fence.id for batch in self._dispatch.held}
        kept = await self._store.renew(sorted(ids), self._lease_s)
        # What was settled while we asked is no longer held and no loss.
        lost = (ids - kept) & {batch.fence.id for batch in self._dispatch.held}
        if lost:
            self._dispatch.abandon(lost)
        return len(kept)

    async def renew_sysid(self) -> int:
        if not await self._daemons.renew_sysid(self._sysid, self._sysid_lease_s):
            raise SysidLost(f"the lease of sysid {self._sysid} was lost")
        return 1

    async def sweep(self) -> int:
        """Free batches whose daemon stopped renewing."""
        freed = await self._store.sweep(_SWEEP_MAX)
        if freed:
            log.warning("batches.recovered", batches=freed)
            self._dispatch.look_again()
        return freed

    async def fold(self) -> int:
        """Add what has ended to the counts."""
        return await _repeat(partial(self._store.fold, _FOLD_MAX), _FOLD_MAX)

    async def purge(self) -> int:
        """Delete results older than they are kept.

        Never at once: a batch must outlast the moment until its journal's read point is noted, or
        a crash in between would bring it back.
        """
        keep_s = max(self._keep_done_s, _KEEP_MIN_S)
        purged = await _repeat(partial(self._store.purge, keep_s, _PURGE_MAX), _PURGE_MAX)
        if purged:
            log.info("batches.purged", batches=purged)
        return purged


async def _repeat(step: Callable[[], Awaitable[int]], most: int) -> int:
    """Do a step that does at most so much, until it has less to do."""
    done = total = await step()
    while done == most:
        done = await step()
        total += done
    return total
