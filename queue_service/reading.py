"""Reading: results in pages or as a stream, one job with its attempts, lists of jobs.

Takes batches apart for those who ask. Knows no HTTP: answers are plain values for JSON.
"""

from __future__ import annotations

import base64
import heapq
from collections.abc import AsyncIterator, Collection, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import orjson

from queue_service.batch import Finished, State
from queue_service.errors import BadRequest, NotFound
from queue_service.ids import job_id
from queue_service.records import ResultRecord, final_records
from queue_service.store.base import ResultStore, Seen, TypeCounts, Wanted

_BATCHES_PER_READ = 50


class Reader:
    """Answers tenants' questions about their jobs."""

    def __init__(self, store: ResultStore) -> None:
        self._store = store

    # Results.

    async def result(self, tenant: str, post: str, line: int) -> dict[str, Any]:
        """How one job ended; NotFound while it has not."""
        attempts = await self._store.job(tenant, post, line)
        newest = attempts[0][0].finished if attempts else None
        if newest is None:
            raise NotFound("no result of this id")
        return _record_of(newest, post, line).as_json()

    async def known(self, tenant: str, post: str) -> bool:
        """Whether anything of this post is in the store."""
        return await self._store.known(tenant, post)

    async def of_post(
        self, tenant: str, post: str, *, codes: Collection[str] = (), first: int = 0
    ) -> AsyncIterator[ResultRecord]:
        """The results of a post in the order of its lines.

        Jobs that were retried lie in batches of their own; a batch is loaded when its first line
        is reached, so that only those that overlap are in memory.
        """
        outline = sorted(
            (_lines_of_post(done, post)[0], done.id)
            for done in await self._store.outline(tenant, post)
            if _lines_of_post(done, post)[1] > first
        )
        heap: list[tuple[int, int, ResultRecord, Iterator[ResultRecord]]] = []
        opened = 0
        while heap or opened < len(outline):
            if opened < len(outline) and (not heap or outline[opened][0] <= heap[0][0]):
                done = await self._store.finished(tenant, outline[opened][1])
                records = final_records(done, post=post, codes=codes) if done else iter(())
                _push(heap, opened, records)
                opened += 1
                continue
            line, order, record, records = heapq.heappop(heap)
            if line >= first:
                yield record
            _push(heap, order, records)

    def of_type(
        self, tenant: str, *, type_: str | None, codes: Collection[str], cursor: str | None
    ) -> AsyncIterator[tuple[str, ResultRecord]]:
        """Results in the order in which their batches ended, each with the cursor behind it.

        A bad cursor is refused at once, not when the first result is asked for.
        """
        since, skip = _read_cursor(cursor) if cursor else (None, -1)
        found = self._store.results(tenant, type_=type_, codes=codes, since=since)
        return _with_cursors(found, codes, since, skip)

    # Jobs.

    async def job(self, tenant: str, post: str, line: int) -> dict[str, Any]:
        """One job: where it stands, its payload, and what each attempt gave."""
        attempts = await self._store.job(tenant, post, line)
        if not attempts:
            raise NotFound("no job of this id")
        seen, payload = attempts[0]
        ended = [s.finished for s, _ in attempts if s.finished]
        return {
            "id": job_id(post, line),
            "type": seen.jobtype.type,
            "state": _public(seen.state),
            "attempt": seen.attempt,
            "priority": seen.priority,
            "payload": _as_json(payload),
            "create_dt": _time(seen.create_dt),
            "dt": None if seen.finished else _time(seen.dt),
            "done_dt": _time(seen.finished.done_dt) if seen.finished else None,
            "result": _record_of(seen.finished, post, line).as_json() if seen.finished else None,
            "log": seen.finished.log.decode(errors="replace") if seen.finished else "",
            "attempts": [_record_of(done, post, line).as_json() for done in reversed(ended)],
        }

    async def jobs(
        self, tenant: str, wanted: Wanted, *, cursor: str | None, limit: int
    ) -> tuple[list[dict[str, Any]], str | None]:
        """A page of jobs, newest batches first, and the cursor of the next page."""
        until, skip = _read_list_cursor(cursor) if cursor else (None, 0)
        page: list[dict[str, Any]] = []
        while True:
            batches = await self._store.batches(tenant, wanted, until, _BATCHES_PER_READ)
            for seen in batches:
                start = skip if seen.id == until else 0
                entries = enumerate(_entries(seen, wanted.codes))
                for index, entry in islice(entries, start, None):
                    if len(page) == limit:
                        return page, _encode([seen.id, index])
                    page.append(entry)
            if len(batches) < _BATCHES_PER_READ:
                return page, None
            until = batches[-1].id
            skip = sum(span.count for span in batches[-1].spans)

    # The scoreboard.

    async def scoreboard(self, tenant: str) -> dict[str, Any]:
        return {
            "types": {
                row.type: {
                    "waiting": row.waiting,
                    "deferred": row.deferred,
                    "running": row.running,
                    **row.codes,
                    "jobs_per_s": round(row.jobs_last_minute / 60, 3),
                    "run_s": _percentiles(row.run_s),
                    "wait_s": _percentiles(row.wait_s),
                    **_used(row),
                }
                for row in await self._store.scoreboard(tenant)
            }
        }


def _push(
    heap: list[tuple[int, int, ResultRecord, Iterator[ResultRecord]]],
    order: int,
    records: Iterator[ResultRecord],
) -> None:
    record = next(records, None)
    if record is not None:
        heapq.heappush(heap, (record.line, order, record, records))


def _lines_of_post(done: Finished, post: str) -> tuple[int, int]:
    """The first line of a post in a batch, and the one behind its last."""
    spans = [span for span in done.spans if span.post == post]
    return spans[0].first, spans[-1].first + spans[-1].count


def _record_of(done: Finished, post: str, line: int) -> ResultRecord:
    from_all = final_records(done, post=post, again=True)
    return next(record for record in from_all if record.line == line)


async def _with_cursors(
    batches: AsyncIterator[Finished],
    codes: Collection[str],
    since: tuple[datetime, str] | None,
    skip: int,
) -> AsyncIterator[tuple[str, ResultRecord]]:
    async for done in batches:
        resumed = since is not None and (done.done_dt, done.id) == since
        for record in final_records(done, codes=codes):
            if not resumed or record.batch_index > skip:
                yield _write_cursor(done, record.batch_index), record


def _entries(seen: Seen, codes: Collection[str]) -> Iterator[dict[str, Any]]:
    """A batch's jobs as list entries; what was queued again is listed with its later attempt."""
    if seen.finished:
        for record in final_records(seen.finished, codes=codes):
            yield _entry(seen, record.post, record.line) | {
                "code": record.code,
                "exitcode": record.exitcode,
            }
        return
    for span in seen.spans:
        for line in range(span.first, span.first + span.count):
            yield _entry(seen, span.post, line)


def _entry(seen: Seen, post: str, line: int) -> dict[str, Any]:
    return {
        "id": job_id(post, line),
        "type": seen.jobtype.type,
        "state": _public(seen.state),
        "attempt": seen.attempt,
        "create_dt": _time(seen.create_dt),
    }


def _public(state: State) -> str:
    """To a tenant, a job whose daemon has just died is still running: somebody will take it."""
    return State.RUNNING if state is State.ABANDONED else state


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _as_json(payload: bytes) -> Any:
    """A payload as the handler sees it: decoded JSON, or text."""
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        return payload.decode(errors="replace")


def _used(row: TypeCounts) -> dict[str, Any]:
    """What a jobtype has used in all, and per job: loading is spread over the jobs it served."""
    jobs = sum(row.codes.values())
    totals = {f"{name}_s_total": round(used, 6) for name, used in row.used_s.items()}
    each = {f"{name}_s": round(used / jobs, 9) for name, used in row.used_s.items() if jobs}
    return totals | {"per_job": each or None}


def _percentiles(values: Collection[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    last = len(ordered) - 1
    return {f"p{p}": round(ordered[round(last * p / 100)], 6) for p in (50, 95, 99)}


def _encode(value: list[Any]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(value)).decode().rstrip("=")


def _decode(cursor: str, *types: type) -> list[Any]:
    try:
        value = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError:
        value = None
    if not isinstance(value, list) or [type(part) for part in value] != list(types):
        raise BadRequest("parameter 'cursor' is not one that was given out")
    return value


def _write_cursor(done: Finished, index: int) -> str:
    return _encode([round(done.done_dt.timestamp() * 1000), done.id, index])


def _read_cursor(cursor: str) -> tuple[tuple[datetime, str], int]:
    ms, batch_id, index = _decode(cursor, int, str, int)
    if not 0 <= ms < 1 << 46:
        raise BadRequest("parameter 'cursor' is not one that was given out")
    return (datetime.fromtimestamp(ms / 1000, UTC), batch_id), index


def _read_list_cursor(cursor: str) -> tuple[str, int]:
    batch_id, index = _decode(cursor, str, int)
    return batch_id, max(0, index)
