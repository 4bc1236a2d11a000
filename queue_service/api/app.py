"""The whole route table and the application around it."""

from __future__ import annotations

from aiohttp import web

from queue_service.api import admin, handlers, jobs, results, signing
from queue_service.api.answers import json_response
from queue_service.api.problems import expectation, guarded
from queue_service.api.services import SERVICES, Services, services


async def livez(request: web.Request) -> web.Response:
    """The event loop answers."""
    return json_response({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    """Whether work is taken. Without MongoDB it still is, into the journal: that is `degraded`."""
    health = services(request).health()
    return json_response(health, status=503 if health["status"] == "unavailable" else 200)


async def nothing_here(request: web.Request) -> web.Response:
    """No route has this path; or one has, with another method."""
    allowed: set[str] = set()
    for resource in request.app.router.resources():
        _, methods = await resource.resolve(request)
        allowed |= methods
    allowed.discard("*")
    if allowed:
        raise web.HTTPMethodNotAllowed(request.method, allowed)
    raise web.HTTPNotFound


ROUTES = [
    # The paths of the original design, served as they are written there.
    web.post("/{tenant}/job/{type}/add", jobs.add),
    web.post("/{tenant}/handler/add/{type}/add", handlers.put),
    web.post("/{tenant}/handler/add/{type}", handlers.put),
    web.post("/{tenant}/handler/del/{type}/delete", handlers.delete),
    web.delete("/{tenant}/handler/del/{type}/delete", handlers.delete),
    web.get("/{tenant}/handler/get/{type}", handlers.get),
    # Operators.
    web.get("/v1/admin/tenants", admin.list_tenants),
    web.put("/v1/admin/tenants/{tenant}", admin.put_tenant),
    web.get("/v1/admin/tenants/{tenant}", admin.get_tenant),
    web.delete("/v1/admin/tenants/{tenant}", admin.delete_tenant),
    web.post("/v1/admin/tenants/{tenant}/keys", admin.post_key),
    web.delete("/v1/admin/tenants/{tenant}/keys/{id}", admin.delete_key),
    # Tenants.
    web.post("/v1/{tenant}/jobs/{type}", jobs.add),
    web.get("/v1/{tenant}/jobs", jobs.list_),
    web.get("/v1/{tenant}/jobs/{id}", jobs.get),
    web.put("/v1/{tenant}/handlers/{type}", handlers.put),
    web.get("/v1/{tenant}/handlers", handlers.list_),
    web.get("/v1/{tenant}/handlers/{type}", handlers.get),
    web.get("/v1/{tenant}/handlers/{type}/versions", handlers.versions),
    web.delete("/v1/{tenant}/handlers/{type}", handlers.delete),
    web.get("/v1/{tenant}/results", results.list_),
    web.get("/v1/{tenant}/results/{id}", results.get),
    web.get("/v1/{tenant}/scoreboard", results.scoreboard),
    web.get("/v1/{tenant}/signing-key", signing.get),
    # Health.
    web.get("/livez", livez),
    web.get("/readyz", readyz),
    # Whatever is left.
    web.route("*", "/{path:.*}", nothing_here),
]


def make_app(use: Services) -> web.Application:
    # aiohttp refuses a body that reaches this size, Hearth one that is over its own.
    app = web.Application(client_max_size=use.body_max_bytes + 1)
    app[SERVICES] = use
    for route in ROUTES:
        handler = guarded(route.handler)
        app.router.add_route(route.method, route.path, handler, expect_handler=expectation)
    return app
