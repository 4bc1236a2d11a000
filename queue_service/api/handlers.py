"""Routes of handlers: upload, read, list, delete."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

import orjson
from aiohttp import web

from handlers.definition import Handler, InvalidHandler, define
from handlers.names import check_function, check_type, split_version
from queue_service.api.answers import json_response
from queue_service.api.services import services, tenant_of
from queue_service.errors import InvalidUpload, NotFound


async def put(request: web.Request) -> web.Response:
    """Store a handler: its source as text with `lang` (or `method`), or all fields as JSON."""
    tenant = await tenant_of(request)
    name = check_function(request.match_info["type"])
    use = services(request)
    definition = define(name, await _fields(request), use.runner.langs)
    problem = await use.runner.check(definition)
    if problem is not None:
        raise InvalidUpload(problem.message, problem.line)
    handler, is_new = await use.handlers.put(tenant, name, definition)
    use.handler_cache.forget(tenant, name)
    use.look_again()
    return json_response(
        {"tenant": tenant, "type": name, "version": handler.version, "lang": definition.lang},
        status=201 if is_new else 200,
    )


async def _fields(request: web.Request) -> dict[str, Any]:
    body = await request.read()
    lang = request.query.get("lang", request.query.get("method"))
    if request.content_type == "application/json":
        try:
            fields = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise InvalidHandler(f"the body is not valid JSON: {error}") from None
        if not isinstance(fields, dict):
            raise InvalidHandler("the body must be a JSON object")
        return {"lang": lang, **fields} if lang else fields
    try:
        return {"lang": lang or "", "body": body.decode()}
    except UnicodeDecodeError:
        raise InvalidHandler("the source is not valid UTF-8") from None


async def get(request: web.Request) -> web.Response:
    tenant = await tenant_of(request)
    name, version = split_version(check_type(request.match_info["type"]))
    handler = await services(request).handlers.get(tenant, name, version)
    if handler is None:
        raise NotFound("no handler of this name")
    return json_response(_as_json(handler))


async def versions(request: web.Request) -> web.Response:
    tenant = await tenant_of(request)
    name = check_function(request.match_info["type"])
    found = await services(request).handlers.versions(tenant, name)
    if not found:
        raise NotFound("no handler of this name")
    return json_response({"versions": [_listed(handler, dt) for handler, dt in found]})


async def list_(request: web.Request) -> web.Response:
    tenant = await tenant_of(request)
    found = await services(request).handlers.names(tenant)
    return json_response({"handlers": [_listed(handler, dt) for handler, dt in found]})


async def delete(request: web.Request) -> web.Response:
    tenant = await tenant_of(request)
    name = check_function(request.match_info["type"])
    use = services(request)
    if not await use.handlers.delete(tenant, name):
        raise NotFound("no handler of this name")
    use.handler_cache.forget(tenant, name)
    return web.Response(status=204)


def _as_json(handler: Handler) -> dict[str, Any]:
    return {"type": handler.name, "version": handler.version, **asdict(handler.definition)}


def _listed(handler: Handler, dt: datetime) -> dict[str, Any]:
    return {
        "type": handler.name,
        "version": handler.version,
        "lang": handler.definition.lang,
        "dt": dt.isoformat().replace("+00:00", "Z"),
    }
