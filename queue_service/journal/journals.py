"""All journals of one daemon: one directory per tenant below one locked root.

    ROOT/.lock                     held while a daemon uses ROOT
    ROOT/{tenant}/{segment}.log    see `segment` and `record`
    ROOT/{tenant}/{segment}.log.bad-{offset}   damaged bytes, set aside for people
    ROOT/{tenant}/cursor           see `cursor`

Keeps count of what is readable over all tenants, so that nobody has to ask thousands of journals,
and writes read points down regularly. What a journal is stands in `journal`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self

from queue_service.errors import JournalUnavailable
from queue_service.journal.appender import Shared
from queue_service.journal.descriptors import Descriptors
from queue_service.journal.disk import Disk, RealDisk
from queue_service.journal.journal import Journal
from queue_service.journal.recovery import Recovered, recover
from queue_service.journal.scan import Damage
from queue_service.journal.settings import JournalSettings
from queue_service.journal.tail import TailBudget

_LOCK = ".lock"
# What a tenant may be called is decided elsewhere; here only that it is one plain path component.
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")

_log = logging.getLogger(__name__)


class JournalsUnusable(RuntimeError):
    """The root cannot be used: another daemon has it, or it is not private to us."""


class Journals:
    """`open` before anything else, `close` at the end; or use it as an async context manager.

    `damaged(tenant, file, damage)` is told everything that is found spoilt.
    """

    def __init__(
        self,
        root: Path,
        settings: JournalSettings,
        *,
        damaged: Callable[[str, str, Damage], None] = lambda tenant, file, damage: None,
        disk: Disk | None = None,
        pool: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
        new_uid: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._root = root
        self._settings = settings
        self._damaged = damaged
        self._disk = disk or RealDisk()
        self._pool = pool or ThreadPoolExecutor(settings.threads, thread_name_prefix="journal")
        self._descriptors = Descriptors(self._disk, settings.open_files)
        self._shared = Shared(
            settings=settings,
            disk=self._disk,
            pool=self._pool,
            descriptors=self._descriptors,
            tails=TailBudget(settings.tail_bytes),
            clock=clock,
            new_uid=new_uid,
        )
        self._lock: int | None = None
        self._journals: dict[str, Journal] = {}
        self._stop = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        # Kept up to date by `_note`; dicts where the order of arrival matters.
        self._unread: dict[str, int] = {}
        self._unread_bytes = 0
        self._readable: dict[str, None] = {}
        self._reserved: set[str] = set()
        self._moved: dict[str, None] = {}
        self._ailing: set[str] = set()
        self._something = asyncio.Event()

    async def open(self) -> None:
        """Take the root and find what earlier lives left; JournalsUnusable if it is not ours."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._pool, self._take_root)
        except BaseException:
            self._let_go()
            raise
        for tenant, recovered in found.items():
            self._add(tenant, recovered)
        self._keeper = asyncio.create_task(self._keep_cursors())

    async def close(self) -> None:
        """End the appends begun, write all read points down, let go of the root."""
        self._stop.set()
        if self._keeper is not None:
            await self._keeper
        try:
            await self._each(Journal.close, self._journals)
        finally:
            self._let_go()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def journal(self, tenant: str) -> Journal:
        """The tenant's journal; a new tenant's directory is made by its first append."""
        journal = self._journals.get(tenant)
        if journal is None:
            if not _TENANT.fullmatch(tenant):
                raise ValueError(f"{tenant[:80]!r} cannot name a directory")
            journal = self._add(tenant, Recovered())
        return journal

    def readable(self, now: float | None = None) -> list[str]:
        """The tenants with unread durable records, those that have been so for longest first.

        With `now`, what was reserved and has run out of time counts as unread again.
        """
        if now is not None:
            for tenant in list(self._reserved):
                self._journals[tenant].lapse(now)
        return list(self._readable)

    async def wait_readable(self, timeout_s: float) -> bool:
        """Wait until `readable()` names anybody; False when the time has passed first."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._something.wait()
        return bool(self._readable)

    @property
    def unread_bytes(self) -> int:
        """Durable bytes of all tenants that have not been committed."""
        return self._unread_bytes

    @property
    def healthy(self) -> bool:
        """False while any journal refuses appends because the disk fails."""
        self._ailing = {tenant for tenant in self._ailing if not self._journals[tenant].healthy}
        return not self._ailing

    @property
    def open_files(self) -> int:
        """How many files are open for appending."""
        return len(self._descriptors)

    def _take_root(self) -> dict[str, Recovered]:
        """In a thread: lock the root and look at every tenant's directory."""
        self._disk.make_dir(self._root)
        self._disk.sync_dir(self._root.parent)
        try:
            self._disk.check_private(self._root)
        except PermissionError as error:
            raise JournalsUnusable(f"the journal directory is not safe to use: {error}") from error
        try:
            self._lock = self._disk.lock(self._root / _LOCK)
        except BlockingIOError as error:
            raise JournalsUnusable(f"{self._root} is in use by another daemon") from error
        found = {}
        for tenant in sorted(self._disk.names(self._root)):
            directory = self._root / tenant
            if _TENANT.fullmatch(tenant) and self._disk.is_dir(directory):
                found[tenant] = recover(self._disk, directory)
            elif tenant != _LOCK:
                _log.warning("%s is no tenant's directory and is left alone", directory)
        return found

    def _let_go(self) -> None:
        self._pool.shutdown()
        self._descriptors.close()
        if self._lock is not None:
            self._disk.close(self._lock)
            self._lock = None

    def _add(self, tenant: str, recovered: Recovered) -> Journal:
        journal = Journal(
            tenant, self._root / tenant, self._shared, recovered, self._note, self._damaged
        )
        self._journals[tenant] = journal
        self._note(journal)
        return journal

    def _note(self, journal: Journal) -> None:
        """Bring the counts over all tenants up to date with one journal."""
        tenant, unread = journal.tenant, journal.unread_bytes
        self._unread_bytes += unread - self._unread.get(tenant, 0)
        self._unread[tenant] = unread
        if journal.readable:
            self._readable.setdefault(tenant)
            self._something.set()
        else:
            self._readable.pop(tenant, None)
            if not self._readable:
                self._something.clear()
        if journal.deadline is None:
            self._reserved.discard(tenant)
        else:
            self._reserved.add(tenant)
        if journal.cursor_moved:
            self._moved.setdefault(tenant)
        if not journal.healthy:
            self._ailing.add(tenant)

    async def _keep_cursors(self) -> None:
        while not self._stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.cursor_every_s):
                    await self._stop.wait()
            moved, self._moved = self._moved, {}
            self._moved.update(await self._each(Journal.sync_cursor, moved))

    async def _each(
        self, act: Callable[[Journal], Coroutine[None, None, None]], tenants: Iterable[str]
    ) -> dict[str, None]:
        """Let all the tenants' journals act; log and return those that could not."""
        tenants = list(tenants)
        ends = await asyncio.gather(
            *(act(self._journals[tenant]) for tenant in tenants), return_exceptions=True
        )
        failed: dict[str, None] = {}
        for tenant, end in zip(tenants, ends, strict=True):
            if isinstance(end, JournalUnavailable):
                _log.error("journal of %s: %s", tenant, end, exc_info=end)
                failed[tenant] = None
            elif end is not None:
                raise end
        return failed
