"""Routes for the operator: tenants and their keys. Secrets are shown once and kept nowhere."""

from __future__ import annotations

from aiohttp import web

from handlers.names import check_tenant
from queue_service import clock
from queue_service.api.answers import json_response
from queue_service.api.services import require_admin, services
from queue_service.auth import new_key, stored_form
from queue_service.errors import NotFound


async def put_tenant(request: web.Request) -> web.Response:
    """Make a tenant with its first key; an existing one is left as it is."""
    await require_admin(request)
    tenant = check_tenant(request.match_info["tenant"])
    if not await services(request).tenants.create(tenant, clock.now()):
        return json_response({"tenant": tenant})
    return json_response({"tenant": tenant, "key": await _issue(request, tenant)}, status=201)


async def _issue(request: web.Request, tenant: str) -> str:
    key = new_key()
    if not await services(request).tenants.add_key(stored_form(key, tenant, clock.now())):
        raise NotFound("no tenant of this name")
    return key


async def get_tenant(request: web.Request) -> web.Response:
    await require_admin(request)
    tenant = check_tenant(request.match_info["tenant"])
    tenants = services(request).tenants
    if not await tenants.exists(tenant):
        raise NotFound("no tenant of this name")
    keys = [
        {"id": key.id, "created": key.created.isoformat()} for key in await tenants.keys(tenant)
    ]
    return json_response({"tenant": tenant, "keys": keys})


async def list_tenants(request: web.Request) -> web.Response:
    await require_admin(request)
    found = await services(request).tenants.all()
    return json_response(
        {"tenants": [{"tenant": name, "created": dt.isoformat()} for name, dt in found]}
    )


async def delete_tenant(request: web.Request) -> web.Response:
    await require_admin(request)
    tenant = check_tenant(request.match_info["tenant"])
    if not await services(request).tenants.delete(tenant):
        raise NotFound("no tenant of this name")
    services(request).keys.forget()
    return web.Response(status=204)


async def post_key(request: web.Request) -> web.Response:
    await require_admin(request)
    tenant = check_tenant(request.match_info["tenant"])
    key = await _issue(request, tenant)
    return json_response({"tenant": tenant, "key": key}, status=201)


async def delete_key(request: web.Request) -> web.Response:
    await require_admin(request)
    tenant = check_tenant(request.match_info["tenant"])
    if not await services(request).tenants.revoke_key(tenant, request.match_info["id"]):
        raise NotFound("no key of this id")
    services(request).keys.forget()
    return web.Response(status=204)
