"""`hearth serve` as a process of its own: to be started, asked, killed, and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from runners.service import Service

from .support import QUICK, Client, Hearth, session

HEARTH = (sys.executable, "-m", "queue_service.cli.main")
# Short enough to be waited for: what a killed daemon held comes back after this.
LEASES = {"lease_s": 3, "renew_every_s": 1, "sysid_lease_s": 3, "store_timeout_s": 1}
_START_S = 30.0


class Served:
    """A data directory with its settings, and the daemon that runs on it now, if any."""

    def __init__(self, http: aiohttp.ClientSession, data: Path, settings: dict[str, Any]) -> None:
        self.log = data.with_suffix(".log")
        self._http = http
        self._data = data
        self._config = data.with_suffix(".toml")
        lines = [f"{name} = {orjson.dumps(value).decode()}" for name, value in settings.items()]
        self._config.write_text("\n".join(lines) + "\n")
        self._service: Service | None = None

    async def start(self) -> Hearth:
        """Start a daemon and wait until it is ready."""
        argv = (*HEARTH, "serve", "--data", str(self._data), "--config", str(self._config))
        self._service = await Service.start(argv, self.log)
        word, url, sysid = (await self._service.first_line(_START_S)).split()
        assert word == "ready"
        key = (self._data / "admin.key").read_text().strip()
        return Hearth(self._http, url, sysid.removeprefix("sysid="), key)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it by a signal; its exit code."""
        assert self._service is not None
        code = await self._service.stop(number)
        self._service = None
        return code

    def send_again(self) -> None:
        """One more signal to a daemon that is stopping."""
        assert self._service is not None
        os.kill(self._service.pid, signal.SIGTERM)

    async def kill(self) -> None:
        assert await self.stop(signal.SIGKILL) == -signal.SIGKILL

    async def restart(self, client: Client) -> Client:
        """Start it again; the same tenant at its new address."""
        return replace(client, url=(await self.start()).url)

    async def end(self) -> None:
        if self._service is not None:
            await self.stop(signal.SIGKILL)


@asynccontextmanager
async def process(data: Path, **settings: Any) -> AsyncIterator[Served]:
    """A daemon to be, with quick leases; whatever is left of it afterwards is killed."""
    async with session() as http:
        served = Served(http, data, {"port": 0} | QUICK | LEASES | settings)
        try:
            yield served
        finally:
            async with asyncio.timeout(60):
                await served.end()
