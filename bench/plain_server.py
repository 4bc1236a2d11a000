"""The other yardstick: an aiohttp server that reads the body and answers a constant.

What any service on this stack (same loop, no access log) pays for a request before it has done
anything. Run as `python -m bench.plain_server`; prints `ready URL`, serves until it is signalled.
"""

from __future__ import annotations

import asyncio

import uvloop
from aiohttp import web

_ANSWER = b'{"batch":"00000000000000000000000000","count":1,"ids":["00000000000000000000000000-0"]}'


async def answer(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(status=202, body=_ANSWER, content_type="application/json")


async def serve() -> None:
    app = web.Application()
    app.router.add_post("/{tail:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    print(f"ready http://{host}:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve())
