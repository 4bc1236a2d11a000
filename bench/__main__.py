"""`python -m bench`: starts a database and a daemon, measures the figures, prints them.

Everything lives in one temporary directory and on 127.0.0.1; both are gone afterwards, also after
an error or Ctrl-C. Exit code 0 says that the service was right, not that it was fast.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CalledProcessError

from bench import figures, report
from bench.children import ChildFailed, child, hearth
from bench.figures import Bench, NotMeasured, Sizes
from bench.service import Service, WrongAnswer
from bench.watch import Watch

_FULL = Sizes(
    drain_jobs=500_000,
    hundreds_jobs=200_000,
    intake_jobs=500_000,
    single_posts=10_000,
    wait_samples=200,
    backlog_small=100_000,
    backlog_large=2_000_000,
    backlog_measured=40_000,
)
_QUICK = Sizes(
    drain_jobs=200_000,
    hundreds_jobs=60_000,
    intake_jobs=200_000,
    single_posts=4_000,
    wait_samples=100,
    backlog_small=100_000,
    backlog_large=400_000,
    backlog_measured=40_000,
)
_MEASURES = {
    measure.__name__: measure
    for measure in (
        figures.drain,
        figures.drain_hundreds,
        figures.intake,
        figures.singles,
        figures.waited,
        figures.backlog,
        figures.memory,
    )
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer jobs: less than half the time")
    parser.add_argument(
        "--only",
        action="append",
        choices=list(_MEASURES),
        help="measure only this; may be given more than once",
    )
    parser.add_argument("--dir", type=Path, help="where to put the data; a real disk, not tmpfs")
    arguments = parser.parse_args()
    # SIGTERM unwinds like Ctrl-C, so that no process is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.dir) as directory:
            names = arguments.only or list(_MEASURES)
            _run(_QUICK if arguments.quick else _FULL, names, Path(directory))
    except (WrongAnswer, NotMeasured, ChildFailed, CalledProcessError, OSError) as error:
        print(f"bench: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _run(sizes: Sizes, names: Collection[str], directory: Path) -> None:
    started = time.monotonic()
    print(report.facts(), flush=True)
    print(f"{'quick' if sizes is _QUICK else 'full'} run\n", flush=True)
    measured: list[report.Figure] = []
    with _service(sizes, directory) as bench:
        # In the order of the table, however they were asked for: `memory` comes last.
        for measure in (measure for name, measure in _MEASURES.items() if name in names):
            for figure in measure(bench):
                print(report.json_line(figure), flush=True)
                measured.append(figure)
    print(f"\n{report.table(measured)}\n\n{report.cpu_table(measured)}")
    print(f"\n{time.monotonic() - started:.0f} s in all")


@contextmanager
def _service(sizes: Sizes, directory: Path) -> Iterator[Bench]:
    data = directory / "data"
    serve = ("serve", "--data", str(data), "--host", "127.0.0.1", "--port", "0")
    with (
        child("mongo", hearth("mongo", "--data", str(directory / "db")), directory) as (mongo, uri),
        child("daemon", hearth(*serve, "--mongo", uri), directory) as (daemon, ready),
    ):
        url = ready.split()[0]
        admin_key = (data / "admin.key").read_text().strip()
        watch = Watch(daemon, mongo)
        with watch.watching():
            yield Bench(
                sizes=sizes,
                directory=directory,
                mongo_uri=uri,
                tenant=lambda name: Service.create(url, admin_key, name),
                watch=watch,
            )


if __name__ == "__main__":
    sys.exit(main())
