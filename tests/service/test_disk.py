"""A disk that is full or broken: nothing is acknowledged that is not on it, and it may get better.

What the journal does about it in detail is tested with the journal.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from queue_service import daemon
from queue_service.journal.disk import RealDisk
from queue_service.journal.settings import JournalSettings
from tests.waiting import eventually

from .support import PROBLEM, serving, settings_of


@dataclass(slots=True)
class Faults:
    """Makes one operation on journal segments fail, as long as `left` lasts."""

    code: int
    left: int = 1
    hit: int = 0

    def __call__(self, real: Callable[..., None]) -> Callable[..., None]:
        def failing(disk: RealDisk, fd: int, *more: bytes) -> None:
            file = Path(f"/proc/self/fd/{fd}").readlink()
            if self.left and file.suffix == ".log":  # and not a cursor's
                self.left -= 1
                self.hit += 1
                raise OSError(self.code, "injected")
            real(disk, fd, *more)

        return failing


DISK = {
    "full at a write": ("write", errno.ENOSPC, 507, "disk-full"),
    "full at a sync": ("fdatasync", errno.ENOSPC, 507, "disk-full"),
    "over its quota": ("write", errno.EDQUOT, 507, "disk-full"),
    "broken at a write": ("write", errno.EIO, 503, "journal-unavailable"),
    "broken at a sync": ("fdatasync", errno.EIO, 503, "journal-unavailable"),
}


@pytest.mark.checklist("M29")
@pytest.mark.parametrize(("what", "code", "status", "slug"), DISK.values(), ids=DISK.keys())
async def test_what_could_not_be_made_durable_is_not_acknowledged_and_never_run(
    mongod: str,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    code: int,
    status: int,
    slug: str,
) -> None:
    settings = settings_of(tmp_path, mongod, database)
    async with serving(settings) as hearth:
        acme = await hearth.tenant()
        await acme.upload("work")
        before = await acme.run("work", ["before"])
        faults = Faults(code)
        monkeypatch.setattr(RealDisk, what, faults(getattr(RealDisk, what)))
        answer = await acme.post("work", b"refused\n" * 10)
        assert faults.hit == 1
        assert (answer.status, answer.type) == (status, PROBLEM)
        assert answer.json["type"] == f"urn:hearth:problem:{slug}"
        assert int(answer.headers["Retry-After"]) > 0
        after = await acme.run("work", ["after"])
    # A restart reads the journal again: what was refused is not in there either.
    async with serving(settings) as hearth:
        again = hearth.at(acme)
        last = await again.run("work", ["last"])
        found = [record["id"] for record in await again.results()]
        assert found == [record["id"] for record in (*before, *after, *last)]
        assert (await again.row("work"))["ok"] == 3


async def test_a_disk_that_keeps_failing_is_reported_and_left_alone_for_a_while(
    mongod: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = JournalSettings(refusal_s=1.0)
    monkeypatch.setattr(daemon, "_journal_settings", lambda settings: journal)
    async with serving(settings_of(tmp_path, mongod, database)) as hearth:
        acme = await hearth.tenant()
        faults = Faults(errno.EIO, left=2)
        monkeypatch.setattr(RealDisk, "fdatasync", faults(RealDisk.fdatasync))
        answers = [await acme.post("unhandled", b"1") for _ in range(4)]
        assert [answer.status for answer in answers] == [503] * 4
        assert faults.hit == 2  # the others were not even tried
        ready = await acme.ask("GET", "/readyz")
        assert ready.status == 503
        assert (ready.json["status"], ready.json["journal"]) == ("unavailable", "failing")
        assert (await acme.ask("GET", "/livez")).status == 200

        async def taken() -> bool:
            return (await acme.post("unhandled", b"1")).status == 202

        await eventually(taken)
        assert (await acme.ask("GET", "/readyz")).json["status"] == "ok"
        assert (await acme.row("unhandled"))["waiting"] == 1
