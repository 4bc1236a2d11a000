"""Routes of results: one by id, pages or a stream of many, the scoreboard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
from aiohttp import web

from queue_service.api.answers import codes_of, json_response, limit_of
from queue_service.api.jobs import job_id_of
from queue_service.api.services import services, tenant_of
from queue_service.errors import BadRequest, NotFound
from queue_service.ids import parse_post_id
from queue_service.reading import Reader
from queue_service.records import ResultRecord

_NDJSON = "application/x-ndjson"
_CHUNK_RECORDS = 500
_FRESH_S = 2.0


async def get(request: web.Request) -> web.Response:
    tenant = await tenant_of(request)
    post, line = job_id_of(request)
    return json_response(await services(request).reader.result(tenant, post, line))


async def list_(request: web.Request) -> web.StreamResponse:
    """A page of results, or all of them as NDJSON."""
    tenant = await tenant_of(request)
    use = services(request)
    wants_all = _NDJSON in request.headers.get("Accept", "")
    found = await _found(request, use.reader, tenant)
    if wants_all:
        return await _stream(request, found)
    limit = limit_of(request)
    page: list[dict[str, Any]] = []
    last = following = None
    async for cursor, record in found:
        if len(page) == limit:
            following = last
            break
        page.append(record.as_json())
        last = cursor
    return json_response({"results": page, "next": following})


async def _found(
    request: web.Request, reader: Reader, tenant: str
) -> AsyncIterator[tuple[str, ResultRecord]]:
    query = request.query
    codes = codes_of(request)
    cursor = query.get("cursor")
    if "batch" not in query:
        return reader.of_type(tenant, type_=query.get("type"), codes=codes, cursor=cursor)
    post = parse_post_id(query["batch"])
    if post is None or not await _known(request, tenant, post):
        raise NotFound("no batch of this id")
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
        raise BadRequest("parameter 'cursor' is not one that was given out")
    return _numbered(reader.of_post(tenant, post, codes=codes, first=int(cursor or 0)))


async def _known(request: web.Request, tenant: str, post: str) -> bool:
    use = services(request)
    if await use.reader.known(tenant, post):
        return True
    return await use.ingest.stored(tenant, _FRESH_S) and await use.reader.known(tenant, post)


async def _numbered(
    records: AsyncIterator[ResultRecord],
) -> AsyncIterator[tuple[str, ResultRecord]]:
    """The cursor inside a post is the next line's number."""
    async for record in records:
        yield str(record.line + 1), record


async def _stream(
    request: web.Request, found: AsyncIterator[tuple[str, ResultRecord]]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": _NDJSON})
    await response.prepare(request)
    chunk: list[bytes] = []
    async for _, record in found:
        chunk.append(orjson.dumps(record.as_json(), option=orjson.OPT_APPEND_NEWLINE))
        if len(chunk) == _CHUNK_RECORDS:
            await response.write(b"".join(chunk))
            chunk.clear()
    await response.write(b"".join(chunk))
    await response.write_eof()
    return response


async def scoreboard(request: web.Request) -> web.Response:
    tenant = await tenant_of(request)
    use = services(request)
    await use.ingest.stored(tenant, _FRESH_S)
    return json_response(await use.reader.scoreboard(tenant))
