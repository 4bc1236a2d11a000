"""The store's protocols: what the rest of the queue may ask of it.

Every write that follows a claim carries the claim's fence. Everything read on a tenant's behalf
takes the tenant as an argument and can answer nothing of another's. Every method raises
StoreUnavailable when the store does not answer, in which case it is unknown whether a write
happened; all writes may therefore be repeated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from handlers.definition import Definition, Handler
from handlers.names import JobType
from queue_service.batch import Batch, Fence, Finished, NewBatch, Settlement, State
from runners.base import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A jobtype with batches that could run now, how many jobs they hold, since when."""

    jobtype: JobType
    batches: int
    jobs: int
    oldest: datetime


class BatchStore(Protocol):
    """Batches and their life, as a daemon sees it."""

    async def add(self, batches: Sequence[NewBatch]) -> None:
        """Insert batches, majority-acknowledged; one that is there already is left as it is."""

    async def add_held(self, new: NewBatch, fence: Fence, lease_s: float) -> None:
        """Insert a batch as RUNNING under a fence; well if it is there already."""

    async def covered(self, tenant: str, posts: Sequence[str]) -> list[Span]:
        """Which lines of these posts any batch in the store holds, in no order."""

    async def mark(self, segment: str) -> int:
        """How far this journal segment is known to have been stored (0: nothing of it)."""

    async def move_marks(self, ends: Mapping[str, int]) -> None:
        """Note how far segments have been stored; a mark never moves back.

        Marks outlive the batches: an old journal that turns up again after its batches were purged
        is still known to be stored.
        """

    async def waiting(self) -> list[Waiting]:
        """The jobtypes that have READY batches."""

    async def claim(self, jobtype: JobType, lease_s: float) -> Batch | None:
        """Take the first READY batch of a type: READY -> RUNNING, in one atomic step.

        Highest priority first, then the oldest. None when there is nothing eligible.
        """

    async def claim_expired(self, jobtype: JobType, lease_s: float) -> Batch | None:
        """Like claim, but only a batch whose retry window has ended."""

    async def renew(self, ids: Sequence[str], lease_s: float) -> set[str]:
        """Prolong the leases of batches this daemon holds; answer the ids it still holds."""

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Write each settlement all or nothing; may write several in one go.

        Answers per settlement whether it took effect; False means that the fence is outdated: the
        batch was taken over, and nothing of the settlement was written.
        """

    async def fold(self, limit: int) -> int:
        """Add ended attempts that are not in the counts yet to them, of at most `limit` batches.

        The scoreboard is exact at all times: it adds up the counts and what is not folded yet.
        """

    async def sweep(self, limit: int) -> int:
        """ABANDONED -> READY for at most `limit` batches; counts a recovery for each."""

    async def purge(self, keep_s: float, limit: int) -> int:
        """Delete at most `limit` folded batches that were done more than `keep_s` ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A batch as tenants see it. `finished` when it is DONE, with or without its blocks."""

    id: str
    state: State
    jobtype: JobType
    spans: tuple[Span, ...]
    attempt: int
    priority: int
    dt: datetime
    create_dt: datetime
    finished: Finished | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which batches a tenant asks for; with `codes`, only such as hold a job that ended so."""

    type: str | None = None
    state: State | None = None
    codes: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeCounts:
    """A jobtype's line of the scoreboard: jobs now, ended attempts so far, recent times.

    `used_s` is what all attempts have used so far: `run` wall time of the jobs, `load` wall time of
    starting contexts and of `before`, `cpu` processor time of both.
    """

    type: str
    waiting: int
    deferred: int
    running: int
    codes: Mapping[str, int]
    used_s: Mapping[str, float]
    run_s: Sequence[float]
    wait_s: Sequence[float]
    jobs_last_minute: int


class ResultStore(Protocol):
    """What a tenant may read about its jobs."""

    async def job(self, tenant: str, post: str, line: int) -> list[tuple[Seen, bytes]]:
        """Every batch that holds this job, one per attempt, newest first, with the payload."""

    async def outline(self, tenant: str, post: str) -> list[Finished]:
        """The DONE batches of a post without their blocks: which lines have ended, and how."""

    async def finished(self, tenant: str, batch_id: str) -> Finished | None:
        """One DONE batch with its result block."""

    async def known(self, tenant: str, post: str) -> bool:
        """Whether any batch of this post is in the store."""

    def results(
        self,
        tenant: str,
        *,
        type_: str | None,
        codes: Collection[str],
        since: tuple[datetime, str] | None,
    ) -> AsyncIterator[Finished]:
        """DONE batches that may hold such results, in order of (done_dt, id), from `since` on."""

    async def batches(
        self, tenant: str, wanted: Wanted, until: str | None, limit: int
    ) -> list[Seen]:
        """Batches without their blocks, in falling order of id, from `until` on."""

    async def scoreboard(self, tenant: str) -> list[TypeCounts]:
        """Exact counts per jobtype."""


class HandlerStore(Protocol):
    """Handlers and their versions."""

    async def put(self, tenant: str, name: str, definition: Definition) -> tuple[Handler, bool]:
        """Store a definition as the newest version; an unchanged one keeps its version (False)."""

    async def get(self, tenant: str, name: str, version: int | None = None) -> Handler | None:
        """One version, or the newest; None when there is none or the handler was deleted."""

    async def versions(self, tenant: str, name: str) -> list[tuple[Handler, datetime]]:
        """All versions that are kept, newest first."""

    async def names(self, tenant: str) -> list[tuple[Handler, datetime]]:
        """The newest version of each of the tenant's handlers."""

    async def delete(self, tenant: str, name: str) -> bool:
        """Undefine a handler; False when there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An API key without its secret."""

    id: str
    digest: bytes
    tenant: str
    created: datetime


class TenantStore(Protocol):
    """Tenants and their keys. Secrets never reach the store, only their digests."""

    async def create(self, tenant: str, now: datetime) -> bool:
        """Make a tenant; False when it exists."""

    async def exists(self, tenant: str) -> bool: ...

    async def all(self) -> list[tuple[str, datetime]]: ...

    async def delete(self, tenant: str) -> bool:
        """Remove a tenant and its keys. Its jobs run out with their results."""

    async def add_key(self, key: Key) -> bool:
        """Add a key; False when there is no such tenant."""

    async def revoke_key(self, tenant: str, key_id: str) -> bool: ...

    async def keys(self, tenant: str) -> list[Key]: ...

    async def find_key(self, key_id: str) -> Key | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sysid:
    """A reserved daemon identity: a slot, and an epoch that grows at each reservation of it.

    `str()` is what `lock` holds; a restarted daemon never mistakes old locks for its own.
    """

    slot: int
    epoch: int

    def __str__(self) -> str:
        return f"s{self.slot}.{self.epoch}"


class DaemonRegistry(Protocol):
    """Sysid leases."""

    async def reserve(self, info: Mapping[str, str], lease_s: float) -> Sysid:
        """Take the lowest slot whose lease has ended, or a new one. Never one that is held."""

    async def renew_sysid(self, sysid: Sysid, lease_s: float) -> bool:
        """Prolong the lease; False when it is no longer held."""

    async def release(self, sysid: Sysid) -> None:
        """Give the slot back at once."""
