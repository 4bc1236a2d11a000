"""Routes of jobs: submit, wait, look one up, list."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import orjson
from aiohttp import web

from queue_service import clock
from queue_service.api.answers import codes_of, json_response, limit_of, one_of
from queue_service.api.services import Services, body_of, jobtype_of, services, tenant_of
from queue_service.batch import State
from queue_service.errors import BadRequest, NotFound, StoreUnavailable, UnsupportedMedia
from queue_service.ids import ids_json, parse_job_id
from queue_service.intake import Accepted
from queue_service.options import read, seconds
from queue_service.store.base import Wanted
from queue_service.waiters import Waiter

_SUBMIT_PARAMETERS = frozenset(
    {"delay", "at", "priority", "timeout", "retries", "retry_delay", "wait", "ack"}
)
_LOOK_EVERY_S = 0.5
_READ_OWN_WRITES_S = 2.0
_STATES = ("deferred", "ready", "running", "done")


async def add(request: web.Request) -> web.Response:
    """Take payload lines in: 202 once they are durable, 200 with results if waited for."""
    jobtype = await jobtype_of(request)
    use = services(request)
    opts, wait_s, ack = _asked(request, use) if request.query_string else ("", 0.0, "journal")
    if "Content-Encoding" in request.headers:
        raise UnsupportedMedia("compressed bodies are not taken")
    accepted = await use.intake.accept(jobtype, await body_of(request), opts)
    if ack == "store" and not await use.ingest.stored(jobtype.tenant, use.wait_max_s):
        raise StoreUnavailable(f"batch {accepted.post} is in the journal, not yet in the store")
    if wait_s:
        return await _waited(use, jobtype.tenant, accepted, wait_s)
    return _answer(202, accepted)


def _asked(request: web.Request, use: Services) -> tuple[str, float, str]:
    query = request.query
    unknown = sorted(set(query) - _SUBMIT_PARAMETERS)
    if unknown:
        raise BadRequest(f"unknown parameter {unknown[0][:40]!r}")
    wait_s = seconds("wait", query["wait"], 0, use.wait_max_s) if "wait" in query else 0.0
    ack = one_of(request, "ack", ("journal", "store")) or "journal"
    return read(query, use.defaults, clock.now()), wait_s, ack


def _answer(status: int, accepted: Accepted, results: bytes = b"") -> web.Response:
    body = b'{"batch":"%s","count":%d,"ids":%s%s}' % (
        accepted.post.encode(),
        accepted.count,
        ids_json(accepted.post, accepted.count),
        results and b',"results":' + results,
    )
    return web.Response(status=status, body=body, content_type="application/json")


async def _waited(use: Services, tenant: str, accepted: Accepted, wait_s: float) -> web.Response:
    with use.waiters.watch(accepted.post, accepted.count) as waiter, suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await _complete(use, tenant, accepted.post, waiter)
    if not waiter.complete:
        return _answer(202, accepted)
    ordered = [waiter.records[line].as_json() for line in sorted(waiter.records)]
    return _answer(200, accepted, orjson.dumps(ordered))


async def _complete(use: Services, tenant: str, post: str, waiter: Waiter) -> None:
    """Wait to be told; what another daemon finished is found by looking."""
    while not waiter.over.is_set():
        try:
            async with asyncio.timeout(_LOOK_EVERY_S):
                await waiter.over.wait()
        except TimeoutError:
            await _look(use, tenant, post, waiter)


async def _look(use: Services, tenant: str, post: str, waiter: Waiter) -> None:
    try:
        records = [record async for record in use.reader.of_post(tenant, post)]
    except StoreUnavailable:
        return  # it may be back before the time is up
    waiter.records.update({record.line: record for record in records})
    waiter.check()


def job_id_of(request: web.Request) -> tuple[str, int]:
    parsed = parse_job_id(request.match_info["id"])
    if parsed is None:
        raise NotFound("no job of this id")
    return parsed


async def get(request: web.Request) -> web.Response:
    tenant = await tenant_of(request)
    post, line = job_id_of(request)
    use = services(request)
    try:
        found = await use.reader.job(tenant, post, line)
    except NotFound:
        # Perhaps it is on its way from the journal: a tenant can read what it has just written.
        await use.ingest.stored(tenant, _READ_OWN_WRITES_S)
        found = await use.reader.job(tenant, post, line)
    return json_response(found)


async def list_(request: web.Request) -> web.Response:
    tenant = await tenant_of(request)
    use = services(request)
    state = one_of(request, "state", _STATES)
    await use.ingest.stored(tenant, _READ_OWN_WRITES_S)
    wanted = Wanted(
        type=request.query.get("type"),
        state=State(state) if state else None,
        codes=codes_of(request),
    )
    page, following = await use.reader.jobs(
        tenant, wanted, cursor=request.query.get("cursor"), limit=limit_of(request)
    )
    answer: dict[str, Any] = {"jobs": page, "next": following}
    return json_response(answer)
