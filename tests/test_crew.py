"""A crew ends together: by its leader, by a failure, and also with a task that will not hear."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from queue_service.crew import Crew


async def forever() -> None:
    await asyncio.Event().wait()


async def test_leaving_ends_everybody() -> None:
    ended = []

    async def work() -> None:
        try:
            await forever()
        finally:
            ended.append(1)

    async with Crew() as crew:
        for _ in range(3):
            crew.start(work())
        await asyncio.sleep(0)
    assert ended == [1, 1, 1]


async def test_a_task_that_loses_a_cancellation_is_asked_again() -> None:
    lost = []

    async def work() -> None:
        with suppress(asyncio.CancelledError):
            await forever()
        lost.append(1)
        await forever()

    async with asyncio.timeout(10), Crew() as crew:
        crew.start(work())
        await asyncio.sleep(0)
    assert lost == [1]


async def test_its_leader_is_told_of_a_failure() -> None:
    async def fail() -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        async with asyncio.timeout(10), Crew() as crew:
            crew.start(forever())
            crew.start(fail())
            await crew.until(asyncio.Event())


async def test_its_leader_goes_on_when_told_to() -> None:
    stop = asyncio.Event()
    async with asyncio.timeout(10), Crew() as crew:
        crew.start(forever())
        asyncio.get_running_loop().call_soon(stop.set)
        await crew.until(stop)


async def test_tasks_may_come_and_go() -> None:
    done = []

    async def work() -> None:
        done.append(1)

    async with Crew() as crew:
        for _ in range(100):
            crew.start(work())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(done) == 100
