"""The route of the secret by which a tenant's own servers know Hearth's requests."""

from __future__ import annotations

from aiohttp import web

from queue_service.api.answers import json_response
from queue_service.api.services import services, tenant_of


async def get(request: web.Request) -> web.Response:
    tenant = await tenant_of(request)
    secret = services(request).signing_secret(tenant)
    response = json_response({"tenant": tenant, "algorithm": "hmac-sha256", "secret": secret})
    response.headers["Cache-Control"] = "no-store"
    return response
