"""Watches processes from outside: the daemon's memory all the time, everyone's CPU on request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

_EVERY_S = 0.1
MB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """CPU seconds used so far, by who used them."""

    daemon: float
    contexts: float
    mongod: float

    def since(self, earlier: Cpu) -> Cpu:
        return Cpu(
            daemon=self.daemon - earlier.daemon,
            contexts=self.contexts - earlier.contexts,
            mongod=self.mongod - earlier.mongod,
        )


class Watch:
    """One daemon and the process that runs its database."""

    def __init__(self, daemon: psutil.Process, mongo: psutil.Process) -> None:
        self._daemon = daemon
        self._mongo = mongo
        self._stop = threading.Event()
        self.rss_max_bytes = 0

    def rss_bytes(self) -> int:
        """The memory of the daemon's own process, without its contexts."""
        rss: int = self._daemon.memory_info().rss
        return rss

    def cpu(self) -> Cpu:
        """A context that ended takes its seconds along: good for spans in which none does."""
        return Cpu(
            daemon=_cpu_s(self._daemon),
            contexts=sum(_cpu_s(process) for process in self._daemon.children(recursive=True)),
            mongod=sum(_cpu_s(process) for process in self._mongo.children(recursive=True)),
        )

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._sample, name="watch")
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(_EVERY_S):
            try:
                self.rss_max_bytes = max(self.rss_max_bytes, self.rss_bytes())
            except psutil.NoSuchProcess:
                return  # whoever talks to the daemon finds out and says it better


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
