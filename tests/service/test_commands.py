"""The command line: what each command prints, and the exit code that a script can go by."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import sys
from pathlib import Path
from time import perf_counter

import orjson
import pytest
from pymongo import AsyncMongoClient

from runners.service import Service
from runners.supervise import Finished, run_once

from .processes import HEARTH, process

READY = re.compile(r"ready http://127\.0\.0\.1:[1-9][0-9]* sysid=s[0-9]+\.[0-9]+")


async def hearth(*arguments: str, timeout_s: float = 60.0) -> Finished:
    return await run_once((*HEARTH, *arguments), timeout_s)


async def test_the_installed_command_lists_its_commands_quickly() -> None:
    command = shutil.which("hearth", path=str(Path(sys.executable).parent))
    assert command is not None
    started = perf_counter()
    done = await run_once((command, "--help"), 20)
    took_s = perf_counter() - started
    assert done.code == 0
    for name in ("serve", "mongo", "demo", "config"):
        assert name in done.output
    assert took_s < 3


async def test_help_loads_neither_driver_nor_server() -> None:
    script = "import sys, queue_service.cli.main; print(' '.join(sys.modules))"
    done = await run_once((sys.executable, "-c", script), 20)
    assert done.code == 0
    assert {"pymongo", "aiohttp", "pydantic", "rich.progress"}.isdisjoint(done.output.split())


async def test_the_demo_runs_jobs_and_shows_how_to_go_on() -> None:
    done = await hearth("demo", "--jobs", "2000")
    assert done.code == 0, done.output
    assert "scoreboard" in done.output
    lines = done.output.splitlines()
    assert [line for line in lines if "demo/increment" in line and "2,000" in line]
    assert "2,000 jobs accepted" in done.output
    curls = [line for line in lines if line.strip().startswith("curl ")]
    assert len(curls) >= 3
    assert all("Authorization: Bearer hearth_" in line for line in curls)


async def test_the_database_alone_can_be_run_for_daemons_to_share(tmp_path: Path) -> None:
    argv = (*HEARTH, "mongo", "--data", str(tmp_path))
    service = await Service.start(argv, tmp_path / "log")
    try:
        word, uri = (await service.first_line(30)).split()
        assert word == "ready"
        assert uri.startswith("mongodb://")
        async with AsyncMongoClient[dict[str, object]](uri) as client:
            assert (await client.admin.command("ping"))["ok"] == 1
    finally:
        code = await service.stop()
    assert code == 0


async def test_a_daemon_says_when_and_where_it_can_be_used(
    mongod: str, database: str, tmp_path: Path
) -> None:
    flags = ("--data", str(tmp_path / "data"), "--port", "0", "--mongo", mongod)
    config = tmp_path / "hearth.toml"
    config.write_text(f"database = {orjson.dumps(database).decode()}\n")
    argv = (*HEARTH, "serve", *flags, "--config", str(config))
    service = await Service.start(argv, tmp_path / "log")
    try:
        line = await service.first_line(30)
    finally:
        code = await service.stop(signal.SIGINT)
    assert READY.fullmatch(line)
    assert code == 0


async def test_the_settings_are_shown_with_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "hearth.toml"
    config.write_text("retries = 3\nlease_s = 40\n")
    monkeypatch.setenv("HEARTH_LEASE_S", "45")
    monkeypatch.setenv("HEARTH_ADMIN_KEY", "secret")
    done = await hearth("config", "show", "--origin", "--config", str(config))
    assert done.code == 0
    lines = done.output.splitlines()
    assert "retries = 3    # file " + str(config) in lines
    assert "lease_s = 45.0    # environment" in lines
    assert "lines_max = 100000    # default" in lines
    assert "secret" not in done.output
    bare = await hearth("config", "show", "--config", str(config))
    assert "retries = 3" in bare.output.splitlines()


BAD_SETTINGS = {
    "a flag": (("serve", "--port", "99999"), {}, "port (from flag)"),
    "the environment": (("serve",), {"HEARTH_LEASE_S": "soon"}, "lease_s (from environment)"),
    "a misspelt name": (("serve",), {"HEARTH_LEASES": "3"}, "HEARTH_LEASES"),
    "values at odds": (("serve",), {"HEARTH_LEASE_S": "1"}, "renew_every_s * 3 <= lease_s"),
    "another command": (("mongo",), {"HEARTH_PORT": "-1"}, "port (from environment)"),
    "a file that is missing": (("serve", "--config", "/no/such.toml"), {}, "/no/such.toml"),
}


@pytest.mark.parametrize(
    ("arguments", "environ", "says"), BAD_SETTINGS.values(), ids=BAD_SETTINGS.keys()
)
async def test_bad_settings_are_named_and_end_with_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    environ: dict[str, str],
    says: str,
) -> None:
    monkeypatch.setenv("HEARTH_DATA", str(tmp_path / "data"))
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    done = await hearth(*arguments, timeout_s=20)
    assert done.code == 2
    assert says in done.output
    assert "Traceback" not in done.output
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("embedded", [False, True], ids=["shared database", "embedded database"])
async def test_a_second_daemon_on_the_same_directory_is_refused(
    mongod: str, database: str, tmp_path: Path, embedded: bool
) -> None:
    data = tmp_path / "data"
    where = {} if embedded else {"mongo": mongod, "database": database}
    async with process(data, **where) as served:
        first = await served.start()
        config = ("--config", str(data.with_suffix(".toml")))
        done = await hearth("serve", "--data", str(data), *config, timeout_s=30)
        assert done.code == 5
        assert done.output.splitlines()[-1].startswith("hearth: ")
        assert str(data) in done.output
        assert "another" in done.output
        assert "Traceback" not in done.output
        # The first one does not mind.
        client = await first.tenant()
        await client.upload("work")
        assert [r["code"] for r in await client.run("work", [1])] == ["ok"]


UNUSABLE = {
    "a port that is taken": ("port", "in use"),
    "a database that does not answer": ("mongo", "MongoDB does not answer"),
    "a data directory that is a file": ("data", "data"),
    "an unknown scheduler": ("scheduler", "by-dice"),
}


@pytest.mark.parametrize(("what", "says"), UNUSABLE.values(), ids=UNUSABLE.keys())
async def test_what_an_operator_can_mend_is_one_line_and_code_5(
    mongod: str, database: str, tmp_path: Path, what: str, says: str
) -> None:
    settings = {"data": str(tmp_path / "data"), "mongo": mongod, "database": database, "port": 0}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file = tmp_path / "file-of-data"
        file.touch()
        settings |= {
            "port": {"port": taken.getsockname()[1]},
            "mongo": {"mongo": "mongodb://127.0.0.1:9/?replicaSet=x", "store_timeout_s": 0.5},
            "data": {"data": str(file)},
            "scheduler": {"scheduler": "by-dice"},
        }[what]
        config = tmp_path / "hearth.toml"
        config.write_text(
            "\n".join(f"{k} = {orjson.dumps(v).decode()}" for k, v in settings.items())
        )
        done = await hearth("serve", "--config", str(config), timeout_s=15)
    assert done.code == 5, done.output
    assert says in done.output.splitlines()[-1]
    assert "Traceback" not in done.output
