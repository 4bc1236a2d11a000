"""The rules of the rooms: who may import whom, and the one home of each fact. Data for a test.

A rule is a row: names that only their home may use, and an example that breaks it. How names are
found in a source is `tests/sources.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.sources import Module, names_in

QUEUE, RUNNERS, HANDLERS = "queue_service/", "runners/", "handlers/"
STORE, JOURNAL, CLI = "queue_service/store/", "queue_service/journal/", "queue_service/cli/"
API, DAEMON = "queue_service/api/", "queue_service/daemon.py"
DISK, STATES = "queue_service/journal/disk.py", "queue_service/batch.py"
HOSTS, EXAMPLES = "runners/hosts/", "handlers/examples/"  # examples: as tenants write them


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`names` may be used in `within` only by `home`. `wrong` breaks it if it stands in `where`."""

    what: str
    names: tuple[str, ...]
    home: tuple[str, ...]
    within: tuple[str, ...] = (QUEUE, RUNNERS, HANDLERS)
    where: str = "queue_service/ingest.py"
    wrong: str


RULES = [
    Rule(
        what="the runners and handlers know nothing of the queue",
        names=("queue_service",),
        home=(QUEUE,),
        where="runners/pool.py",
        wrong="def late() -> None:\n    from queue_service import batch",
    ),
    Rule(
        what="the handlers know nothing of the runners",
        names=("runners",),
        home=(QUEUE, RUNNERS),
        where="handlers/definition.py",
        wrong="from runners.base import Span",
    ),
    Rule(
        what="the child hosts import nothing of ours",
        names=("queue_service", "runners", "handlers"),
        home=(),
        within=(HOSTS,),
        where="runners/hosts/python_host.py",
        wrong="from .. import wire",
    ),
    Rule(
        what="the product does not need its tests",
        names=("tests", "bench", "pytest", "hypothesis"),
        home=(),
        wrong="from tests.waiting import eventually",
    ),
    Rule(
        what="the command line and the daemon are the top",
        names=("queue_service.cli", "queue_service.daemon"),
        home=(CLI,),
        wrong="from queue_service.daemon import Daemon",
    ),
    Rule(
        what="only the daemon serves the API",
        names=("queue_service.api",),
        home=(API, DAEMON),
        wrong="from queue_service import api",
    ),
    Rule(
        what="the driver is imported in the store",
        names=("pymongo", "bson", "gridfs", "motor"),
        home=(STORE,),
        wrong="from bson.binary import Binary",
    ),
    Rule(
        what="HTTP stays at the edge of the queue",
        names=("aiohttp",),
        home=(API, DAEMON, CLI),
        within=(QUEUE,),
        wrong="from aiohttp import web",
    ),
    Rule(
        what="processes start in runners",
        names=(
            *(
                "subprocess",
                "multiprocessing",
                "pty",
                "asyncio.subprocess",
                "os.system",
                "os.popen",
            ),
            *("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell", "os.fork"),
            *("os.forkpty", "os.posix_spawn", "os.posix_spawnp", "os.spawnv", "os.execv"),
            *("concurrent.futures.ProcessPoolExecutor", "*.subprocess_exec", "*.subprocess_shell"),
        ),
        home=(RUNNERS,),
        wrong="import asyncio as a\nprocess = a.create_subprocess_exec('true')",
    ),
    Rule(
        what="syncs are asked for in one file",
        names=("os.fsync", "os.fdatasync", "os.sync"),
        home=(DISK,),
        where="queue_service/journal/segment.py",
        wrong="from os import fdatasync",
    ),
    Rule(
        what="files are opened by the journal and a few others, each with its own",
        names=(
            *("builtins.open", "io", "os.open", "os.fdopen", "*.open", "aiofiles"),
            *("*.read_text", "*.read_bytes", "*.write_text", "*.write_bytes"),
        ),
        home=(
            *(JOURNAL, "queue_service/admin_key.py", "queue_service/settings.py", CLI),
            "queue_service/store/mongod_home.py",
        ),
        within=(QUEUE,),
        wrong="from pathlib import Path\nPath('journal/acme/1.log').open('rb')",
    ),
    Rule(
        what="the journal meets the kernel in one file",
        names=("os", "fcntl", "io", "builtins.open", "*.read_bytes", "*.write_bytes", "aiofiles"),
        home=(DISK,),
        within=(JOURNAL,),
        where="queue_service/journal/segment.py",
        wrong="data = open('00000000000000000001.log', 'rb').read()",
    ),
    Rule(
        what="nobody but the journal has its disk",
        names=("queue_service.journal.disk",),
        home=(JOURNAL,),
        wrong="from queue_service.journal.disk import RealDisk",
    ),
    Rule(
        what="the environment is read for the settings",
        names=("os.environ", "os.environb", "os.getenv", "os.getenvb"),
        home=("queue_service/settings.py", "queue_service/cli/main.py"),
        wrong="import os\nlease = os.getenv('HEARTH_LEASE_S')",
    ),
    Rule(
        what="the real clock is read at the edge",
        names=(
            *("time.time", "time.time_ns", "time.gmtime", "time.localtime", "datetime.date.today"),
            *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today"),
        ),
        home=("queue_service/clock.py", HOSTS),
        wrong="from datetime import UTC, datetime\nnow = datetime.now(UTC)",
    ),
    Rule(
        what="the word for done has one home",
        names=("text:__done",),
        home=(STATES,),
        wrong="finished = {'lock': {'$ne': '__done'}}",
    ),
    Rule(
        what="what a lock means is decided by the state table",
        names=("compare:lock",),
        home=(STATES,),
        where="queue_service/store/batches.py",
        wrong="def is_free(row):\n    return row['lock'] == ''",
    ),
    Rule(
        what="filters and updates of a lock are written in one file",
        names=("key:lock",),
        home=("queue_service/store/documents.py",),
        where="queue_service/store/batches.py",
        wrong="def mine(sysid):\n    return {'lock': str(sysid)}",
    ),
]


def breaches(rule: Rule, module: Module) -> list[str]:
    if not module.path.startswith(rule.within) or module.path.startswith(rule.home):
        return []
    return [
        f"{module.path}:{line} uses {name}"
        for line, name in names_in(module)
        if any(name == banned or name.startswith(f"{banned}.") for banned in rule.names)
    ]
