"""Shapes shared by all routes: JSON answers, limits, parameters with few legal values."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import orjson
from aiohttp import web

from queue_service.errors import BadRequest

_LIMIT_MAX = 1000


def json_response(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")


def limit_of(request: web.Request) -> int:
    text = request.query.get("limit", "100")
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _LIMIT_MAX):
        raise BadRequest(f"parameter 'limit' must be a whole number from 1 to {_LIMIT_MAX}")
    return int(text)


def one_of(request: web.Request, name: str, legal: Collection[str]) -> str | None:
    value = request.query.get(name)
    if value is not None and value not in legal:
        raise BadRequest(f"parameter {name!r} must be one of {', '.join(legal)}")
    return value
