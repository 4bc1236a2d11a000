"""Errors as application/problem+json (RFC 9457), made in one place around every route.

Every refusal of the queue, of the names and of aiohttp itself leaves through here; what is left
over is a mistake of ours: logged with its trace, answered without it.
"""

from __future__ import annotations

from typing import Any

import orjson
import structlog
from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Handler

from handlers.definition import InvalidHandler
from handlers.names import InvalidName
from queue_service.api.services import services
from queue_service.errors import BadRequest, InvalidUpload, QueueError, TooLarge

log = structlog.get_logger(__name__)

_TYPE_PREFIX = "urn:hearth:problem:"


def guarded(handler: Handler) -> Handler:
    """The route with whatever it raises turned into a problem document.

    A wrapper and not a middleware, which would cost every request some layers of aiohttp's.
    """

    async def guard(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except QueueError as error:
            return problem(error)
        except InvalidName as error:
            return problem(BadRequest(str(error)))
        except InvalidHandler as error:
            return problem(InvalidUpload(str(error)))
        except web.HTTPRequestEntityTooLarge:
            limit = services(request).body_max_bytes
            return problem(TooLarge(f"the body is over {limit} bytes"))
        except web.HTTPException as error:
            return _answer(error.status, f"http-{error.status}", error.reason, "", error.headers)
        except ConnectionError:
            raise  # the client is gone: nobody to answer
        except Exception as error:
            log.error("api.failed", method=request.method, path=request.path, exc_info=error)
            return _answer(500, "internal", "Internal error", "see the daemon's log")

    return guard


async def expectation(request: web.Request) -> web.StreamResponse | None:
    """Answer an Expect header, which aiohttp looks at before any route."""
    expected = request.headers.get("Expect", "")
    if request.version == HttpVersion11 and expected.lower() != "100-continue":
        detail = f"Expect: {expected[:80]} cannot be met"
        return _answer(417, "http-417", "Expectation Failed", detail)
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # The line is not part of the answer that follows.
    request.writer.output_size = 0
    return None


def problem(error: QueueError) -> web.Response:
    extra: dict[str, Any] = {}
    if isinstance(error, InvalidUpload) and error.line:
        extra["line"] = error.line
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return _answer(error.status, error.slug, error.title, str(error), headers, **extra)


def _answer(
    status: int, slug: str, title: str, detail: str, headers: Any = None, **extra: Any
) -> web.Response:
    kept = {
        name: value
        for name, value in (headers or {}).items()
        if name.lower() not in ("content-type", "content-length")
    }
    body = {
        "type": _TYPE_PREFIX + slug,
        "title": title,
        "status": status,
        "detail": detail,
        **extra,
    }
    return web.Response(
        status=status,
        body=orjson.dumps(body),
        content_type="application/problem+json",
        headers=kept,
    )
