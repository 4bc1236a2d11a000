"""Processes the bench starts and their sure end, whatever happens in between.

Each child says `ready …` on its standard output when it can be used; its log goes to a file. Does
not know what the children are for.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

import psutil

from bench.load import Done, Load

_ROOT = Path(__file__).parent.parent
_READY_S = 60.0
_LOAD_S = 180.0
_STOP_S = 40.0  # longer than a daemon takes to drain
_LOG_TAIL_LINES = 15


class ChildFailed(Exception):
    """A process that did not do its part; the message ends with the last lines of its log."""


@contextmanager
def child(name: str, command: Sequence[str], logs: Path) -> Iterator[tuple[psutil.Process, str]]:
    """Run a server until the block ends: its process, and what it said after `ready`."""
    log = logs / f"{name}.log"
    with _running(command, log) as process:
        yield psutil.Process(process.pid), _ready(name, process, log)


def hearth(*arguments: str) -> list[str]:
    """The command line of the product that is installed beside this interpreter."""
    return [str(Path(sys.executable).with_name("hearth")), *arguments]


def module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"bench.{name}", *arguments]


def run_load(load: Load, logs: Path) -> Done:
    """Send a load from a process of its own, everything made and connected before it begins."""
    log = logs / "load.log"
    with _running(module("load"), log) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(load)) + "\n")
        process.stdin.flush()
        _ready("load", process, log)
        try:
            answer, _ = process.communicate("go\n", timeout=_LOAD_S)
        except subprocess.TimeoutExpired:
            raise ChildFailed(f"load: not done after {_LOAD_S} s") from None
    if process.returncode:
        raise ChildFailed(f"load: exit code {process.returncode}\n{_tail(log)}")
    done = json.loads(answer)
    # JSON knows only strings as keys.
    done["batches"] = {int(post): batch for post, batch in done["batches"].items()}
    return Done(**done)


def run_bare(source: Path, target: Path) -> float:
    """The seconds the bare loop takes over `source`."""
    command = module("bare", str(source), str(target))
    answer = subprocess.run(
        command, cwd=_ROOT, check=True, capture_output=True, text=True, timeout=_LOAD_S
    )
    return float(answer.stdout)


@contextmanager
def _running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    # A session of its own: Ctrl-C reaches only the bench, which then ends its children in order.
    # Settings of the user's shell are kept out, because the defaults are what is measured.
    environ = {key: value for key, value in os.environ.items() if not key.startswith("HEARTH_")}
    with (
        log.open("ab") as errors,
        subprocess.Popen(
            command,
            cwd=_ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    descendants = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, left = psutil.wait_procs(descendants, timeout=5)
    for orphan in left:
        with suppress(psutil.NoSuchProcess):
            orphan.kill()


def _ready(name: str, process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    word, _, rest = _line(process.stdout).partition(" ")
    if word.strip() != "ready":
        raise ChildFailed(f"{name}: did not become ready\n{_tail(log)}")
    return rest.strip()


def _line(stream: IO[str]) -> str:
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return stream.readline() if selector.select(_READY_S) else ""


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
