"""A process that runs a handler which hangs, to be killed by a test; `argv[1]` is the language."""

from __future__ import annotations

import asyncio
import sys

from handlers.definition import Definition, Handler
from runners.base import Call, Span
from runners.process import ProcessRunner, RunnerSettings

BODIES = {"python": "while True: pass"}


async def main(lang: str) -> None:
    definition = Definition(lang=lang, body=BODIES[lang])
    runner = ProcessRunner(RunnerSettings(max_contexts=1))
    await runner.run(
        Call(
            handler=Handler(tenant="acme", name="hang", version=1, definition=definition),
            data=b"1\n",
            count=1,
            spans=(Span(post="p", first=0, count=1),),
            attempt=1,
            job_timeout_s=60.0,
            budget_s=60.0,
        )
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
