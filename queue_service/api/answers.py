"""Shapes shared by all routes: JSON answers, limits, parameters with few legal values."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import orjson
from aiohttp import web

from queue_service.errors import BadRequest
from queue_service.options import whole

_LIMIT_MAX = 1000
_CODES = ("ok", "failed", "retry", "error")


def json_response(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")


def limit_of(request: web.Request) -> int:
    return whole("limit", request.query.get("limit", "100"), 1, _LIMIT_MAX)


def one_of(request: web.Request, name: str, legal: Collection[str]) -> str | None:
    value = request.query.get(name)
    if value is not None and value not in legal:
        raise BadRequest(f"parameter {name!r} must be one of {', '.join(legal)}")
    return value


def codes_of(request: web.Request) -> list[str]:
    """The codes asked for, separated by commas; none asked for means all."""
    codes = [code for code in request.query.get("code", "").split(",") if code]
    if not set(codes) <= set(_CODES):
        raise BadRequest(f"parameter 'code' must be of {', '.join(_CODES)}")
    return codes
