"""`hearth demo`: a whole service in a temporary directory, put through its paces and shown.

Starts `hearth serve` as a user would, talks to it over HTTP only, and stops it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from time import perf_counter
from typing import Any

import aiofiles
import aiohttp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from runners.service import Service, ServiceFailed

_TENANT = "demo"
_TYPE = "increment"
_LINES = 1000
_CONNECTIONS = 4
_START_S = 60.0
_STALLED_S = 60.0

console = Console(highlight=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demo:
    """A running service and a tenant of it."""

    url: str
    key: str
    http: aiohttp.ClientSession

    async def call(self, method: str, path: str, **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.key}"}
        async with self.http.request(method, self.url + path, headers=headers, **more) as answer:
            answer.raise_for_status()
            return await answer.json()


def demo(jobs: int, *, keep: bool) -> int:
    """Run the demo; the exit code says whether every job ended well."""
    with contextlib.suppress(KeyboardInterrupt):
        return asyncio.run(_demo(jobs, keep=keep))
    return 130


async def _demo(jobs: int, *, keep: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="hearth-demo-") as directory:
        data = Path(directory)
        async with _service(data) as url, aiohttp.ClientSession() as http:
            demo = await _tenant(url, (await _text(data / "admin.key")).strip(), http)
            source = files("handlers").joinpath("examples", f"{_TYPE}.py").read_text()
            path = f"/v1/{_TENANT}/handlers/{_TYPE}?lang=python"
            await demo.call("PUT", path, data=source.encode())
            console.print(f"uploaded handler [bold]{_TENANT}/{_TYPE}[/]:")
            console.print("    " + source.strip().replace("\n", "\n    "), style="dim")
            elapsed = await _post_and_watch(demo, jobs)
            board = await demo.call("GET", f"/v1/{_TENANT}/scoreboard")
            _show(board["types"], jobs, elapsed)
            _show_curl(demo, keep=keep)
            if keep:
                await asyncio.Event().wait()
    return 0 if board["types"][_TYPE]["ok"] == jobs else 1


@contextlib.asynccontextmanager
async def _service(data: Path) -> AsyncIterator[str]:
    serve = (sys.executable, "-m", "queue_service.cli.main", "serve")
    with console.status("starting the service and its database …"):
        service = await Service.start(
            (*serve, "--data", str(data), "--port", "0"), log=data / "hearth.log"
        )
        try:
            line = await service.first_line(_START_S)
        except ServiceFailed:
            await service.stop(grace_s=10)
            console.print((await _text(data / "hearth.log"))[-2000:], markup=False)
            raise
    url = line.split()[1]
    console.print(f"service is up: [bold]{url}[/] (data in {data})")
    try:
        yield url
    finally:
        await service.stop()


async def _text(path: Path) -> str:
    async with aiofiles.open(path) as file:
        return await file.read()


async def _tenant(url: str, admin_key: str, http: aiohttp.ClientSession) -> _Demo:
    admin = _Demo(url=url, key=admin_key, http=http)
    made = await admin.call("PUT", f"/v1/admin/tenants/{_TENANT}")
    return _Demo(url=url, key=made["key"], http=http)


async def _post_and_watch(demo: _Demo, jobs: int) -> float:
    """Post everything and wait for the last result; answers the seconds it took."""
    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    started = perf_counter()
    with Progress(*columns, console=console) as progress:
        posted = progress.add_task("accepted", total=jobs)
        done = progress.add_task("done", total=jobs)
        starts = iter(range(0, jobs, _LINES))

        async def post() -> None:
            for start in starts:
                count = min(_LINES, jobs - start)
                lines = b"".join(b'{"n": %d}\n' % n for n in range(start, start + count))
                await demo.call("POST", f"/{_TENANT}/job/{_TYPE}/add", data=lines)
                progress.advance(posted, count)

        async def watch() -> None:
            ended, changed = 0, perf_counter()
            while ended < jobs:
                await asyncio.sleep(0.1)
                board = await demo.call("GET", f"/v1/{_TENANT}/scoreboard")
                row = board["types"].get(_TYPE, {})
                now = sum(row.get(code, 0) for code in ("ok", "failed", "error", "retry"))
                if now != ended:
                    ended, changed = now, perf_counter()
                elif perf_counter() - changed > _STALLED_S:
                    raise TimeoutError(f"only {ended} of {jobs} jobs ended")
                progress.update(done, completed=ended)

        await asyncio.gather(watch(), *(post() for _ in range(_CONNECTIONS)))
    return perf_counter() - started


def _show(types: dict[str, Any], jobs: int, elapsed: float) -> None:
    table = Table(title="scoreboard", title_justify="left")
    table.add_column("jobtype")
    names = ("waiting", "running", "ok", "failed", "retry", "error")
    for name in names:
        table.add_column(name, justify="right")
    for type_, row in types.items():
        table.add_row(f"{_TENANT}/{type_}", *(f"{row[name]:,}" for name in names))
    console.print(table)
    rate = jobs / elapsed
    console.print(
        f"{jobs:,} jobs accepted, fsynced, run and stored in {elapsed:.2f} s: "
        f"[bold]{rate:,.0f} jobs/s[/]"
    )


def _show_curl(demo: _Demo, *, keep: bool) -> None:
    title = "go on with:" if keep else "with `hearth demo --keep` you can go on with:"
    auth = f"-H 'Authorization: Bearer {demo.key}'"
    lines = (
        f"curl {auth} '{demo.url}/v1/{_TENANT}/jobs/{_TYPE}?wait=5' -d '{{\"n\": 41}}'",
        f"curl {auth} {demo.url}/v1/{_TENANT}/scoreboard",
        f"curl {auth} -T my_handler.py '{demo.url}/v1/{_TENANT}/handlers/mine?lang=python'",
    )
    console.print(f"\n{title}")
    for line in lines:
        console.print(f"  {line}", soft_wrap=True, markup=False)
