"""The yardstick: the same handler over the same lines, file to file, in one plain Python process.

Run as `python -m bench.bare IN OUT`; prints the seconds the loop took. Starting the interpreter is
not counted, and nothing is made durable.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from bench.workload import handler


def run(source: Path, target: Path) -> float:
    started = time.perf_counter()
    with source.open() as payloads, target.open("w") as results:
        for line in payloads:
            results.write(json.dumps(handler(json.loads(line), None)) + "\n")
    return time.perf_counter() - started


if __name__ == "__main__":
    print(run(Path(sys.argv[1]), Path(sys.argv[2])))
