"""All tenants together, on real files: ownership, discovery, waking, bounded descriptors."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from queue_service.journal import Journals, JournalSettings, JournalsUnusable
from queue_service.journal.disk import RealDisk

from .support import drain, journals_on, record


class UnsyncedDisk(RealDisk):
    """Real files without the waiting, for tests about numbers rather than durability."""

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_dir(self, path: Path) -> None:
        pass


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (one descriptor, closed at once)


def real(tmp_path: Path, disk: RealDisk | None = None, open_files: int = 128) -> Journals:
    return journals_on(disk, root=tmp_path / "journal", inline=False, open_files=open_files)


@pytest.mark.checklist("M29", "M31", "M55")
async def test_records_survive_on_real_files(tmp_path: Path) -> None:
    items = [record(n, os.urandom(2000).replace(b"\n", b"") + b"\n") for n in range(50)]
    async with real(tmp_path) as journals:
        await asyncio.gather(*(journals.journal("acme").append(item) for item in items))
    async with real(tmp_path) as journals:
        assert await drain(journals.journal("acme"), max_records=7) == items
    async with real(tmp_path) as journals:
        assert journals.readable() == []


async def test_files_are_private(tmp_path: Path) -> None:
    async with real(tmp_path) as journals:
        await journals.journal("acme").append(record(1))
        await drain(journals.journal("acme"))
    paths = list((tmp_path / "journal").rglob("*"))
    assert {path.name for path in paths} >= {"acme", "cursor", ".lock"}
    for path in [tmp_path / "journal", *paths]:
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected


async def test_a_second_daemon_is_told_that_the_journal_is_in_use(tmp_path: Path) -> None:
    async with real(tmp_path):
        with pytest.raises(JournalsUnusable, match="in use by another daemon"):
            await real(tmp_path).open()
    async with real(tmp_path):
        pass


async def test_a_root_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir(mode=0o755)
    with pytest.raises(JournalsUnusable, match="mode 0755"):
        await real(tmp_path).open()


async def test_a_root_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(JournalsUnusable, match="belongs to uid"):
        await real(tmp_path).open()


async def test_a_root_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "journal").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JournalsUnusable, match="not a directory"):
        await real(tmp_path).open()


async def test_strange_entries_are_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "journal"
    root.mkdir(mode=0o700)
    (root / "notes.txt").write_text("mine")
    (root / "link").symlink_to(tmp_path)
    async with real(tmp_path) as journals:
        assert journals.readable() == []
    assert (root / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("tenant", ["", ".", "..", "a/b", "../x", ".lock", "a\0", "a\n", "x" * 200])
async def test_a_tenant_that_is_no_plain_directory_name_is_refused(
    tmp_path: Path, tenant: str
) -> None:
    async with real(tmp_path) as journals:
        with pytest.raises(ValueError, match="directory"):
            journals.journal(tenant)


@pytest.mark.checklist("M31")
async def test_readers_are_woken_by_appends_and_see_only_tenants_with_something(
    tmp_path: Path,
) -> None:
    async with real(tmp_path) as journals:
        journals.journal("idle")
        assert not await journals.wait_readable(0.001)
        waiter = asyncio.create_task(journals.wait_readable(10))
        await journals.journal("beta").append(record(1))
        assert await waiter
        await journals.journal("acme").append(record(2))
        assert journals.readable() == ["beta", "acme"]
        assert journals.unread_bytes == sum(
            journals.journal(tenant).unread_bytes for tenant in ("acme", "beta")
        )
        await drain(journals.journal("beta"))
        assert journals.readable() == ["acme"]
        await drain(journals.journal("acme"))
        assert journals.unread_bytes == 0
        assert not await journals.wait_readable(0.001)
    async with real(tmp_path) as journals:
        assert journals.readable() == []


async def test_tenants_with_leftovers_are_found_at_the_start(tmp_path: Path) -> None:
    async with real(tmp_path) as journals:
        for number, tenant in enumerate(("acme", "beta", "gamma")):
            await journals.journal(tenant).append(record(number))
        await drain(journals.journal("beta"))
    async with real(tmp_path) as journals:
        assert journals.readable() == ["acme", "gamma"]
        assert journals.unread_bytes > 0
        assert await drain(journals.journal("gamma")) == [record(2)]


async def test_5000_tenants_do_not_mean_5000_open_files(tmp_path: Path) -> None:
    before, most = open_descriptors(), 0
    async with real(tmp_path, UnsyncedDisk(), open_files=16) as journals:

        async def work(tenant: str) -> None:
            nonlocal most
            for number in range(2):
                await journals.journal(tenant).append(record(number))
            if tenant.endswith("00"):
                most = max(most, open_descriptors())

        await asyncio.gather(*(work(f"t{number}") for number in range(5000)))
        assert journals.open_files <= 16
        assert most <= before + 16 + 4 + 2  # appending, reading, lock and this directory
        assert len(journals.readable()) == 5000
        assert await drain(journals.journal("t4321")) == [record(0), record(1)]
    assert open_descriptors() <= before


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="open_files"):
        JournalSettings(open_files=2, threads=4)
