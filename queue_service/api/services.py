"""What the API may call, in one value; and how a request finds it and its caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from aiohttp import web

from handlers.names import JobType, check_tenant, check_type
from queue_service.auth import Keys
from queue_service.errors import NotFound, Unauthorized
from queue_service.handler_cache import HandlerCache
from queue_service.ingest import Ingest
from queue_service.intake import Intake
from queue_service.options import Defaults
from queue_service.reading import Reader
from queue_service.store.base import HandlerStore, TenantStore
from queue_service.waiters import Waiters
from runners.base import Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything behind the routes."""

    keys: Keys
    intake: Intake
    ingest: Ingest
    waiters: Waiters
    reader: Reader
    handlers: HandlerStore
    handler_cache: HandlerCache
    tenants: TenantStore
    runner: Runner
    signing_secret: Callable[[str], str]
    defaults: Defaults
    body_max_bytes: int
    wait_max_s: float
    look_again: Callable[[], None]
    health: Callable[[], dict[str, str]]


SERVICES = web.AppKey("services", Services)


def services(request: web.Request) -> Services:
    return request.app[SERVICES]


async def tenant_of(request: web.Request) -> str:
    """The tenant a request speaks for: the path's, and only if the key is that tenant's."""
    caller = await services(request).keys.caller(request.headers.get("Authorization", ""))
    tenant = request.match_info["tenant"]
    if caller.tenant != tenant:
        check_tenant(tenant)
        raise NotFound("there is nothing here for this key")
    return tenant


async def jobtype_of(request: web.Request) -> JobType:
    tenant = await tenant_of(request)
    return _jobtype(tenant, request.match_info["type"])


@lru_cache(maxsize=4096)
def _jobtype(tenant: str, type_: str) -> JobType:
    return JobType(tenant, check_type(type_))


async def body_of(request: web.Request) -> bytes:
    """The body. A small one usually arrives together with its headers and need not be awaited."""
    if request.content.is_eof():
        return request.content.read_nowait()
    return await request.read()


async def require_admin(request: web.Request) -> None:
    caller = await services(request).keys.caller(request.headers.get("Authorization", ""))
    if caller.tenant is not None:
        raise Unauthorized("this key opens nothing here")
