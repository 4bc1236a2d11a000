"""The least a one-job POST with `wait` can cost: one small sync and the three writes of a batch.

Each is measured alone, one after the other, with the same disk and the same mongod as the service.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pymongo import MongoClient, WriteConcern

_RECORD = b"x" * 200  # a journal record of one small job


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Medians in seconds."""

    fdatasync_s: float
    insert_s: float
    claim_s: float
    update_s: float

    @property
    def total_s(self) -> float:
        return self.fdatasync_s + self.insert_s + self.claim_s + self.update_s

    def mean(self, other: Floor) -> Floor:
        """Between two measurements: mongod is not equally fast at all times."""
        return Floor(
            fdatasync_s=(self.fdatasync_s + other.fdatasync_s) / 2,
            insert_s=(self.insert_s + other.insert_s) / 2,
            claim_s=(self.claim_s + other.claim_s) / 2,
            update_s=(self.update_s + other.update_s) / 2,
        )


def measure(directory: Path, mongo_uri: str, samples: int) -> Floor:
    client: MongoClient[dict[str, Any]] = MongoClient(mongo_uri)
    with client:
        floor = client["bench"].get_collection("floor", write_concern=WriteConcern("majority"))
        claimed = {"$set": {"lock": "bench"}, "$inc": {"gen": 1}}
        ended = {"$set": {"lock": "done", "out": b'{"n": 123457}\n'}}
        insert_s = _median(
            samples,
            lambda i: floor.insert_one(
                {"_id": i, "lock": "", "gen": 0, "data": b'{"n": 123456}\n'}
            ),
        )
        claim_s = _median(
            samples, lambda i: floor.find_one_and_update({"_id": i, "lock": ""}, claimed)
        )
        update_s = _median(
            samples, lambda i: floor.update_one({"_id": i, "lock": "bench", "gen": 1}, ended)
        )
        client.drop_database("bench")
    return Floor(
        fdatasync_s=_sync_s(directory / "floor", samples),
        insert_s=insert_s,
        claim_s=claim_s,
        update_s=update_s,
    )


def _sync_s(file: Path, samples: int) -> float:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    # macOS has no fdatasync.
    sync = getattr(os, "fdatasync", os.fsync)

    def append(_: int) -> None:
        os.write(descriptor, _RECORD)
        sync(descriptor)

    try:
        return _median(samples, append)
    finally:
        os.close(descriptor)


def _median(samples: int, work: Callable[[int], object]) -> float:
    took = []
    for i in range(samples):
        started = time.perf_counter()
        work(i)
        took.append(time.perf_counter() - started)
    return median(took)
