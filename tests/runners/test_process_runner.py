"""What is special about warm processes, and about Python ones: reuse, pipelining, sources."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import uvloop

from handlers.definition import Definition, Handler
from runners.base import Call, Outcome, Span, StopReason
from runners.languages import Language
from runners.process import ProcessRunner, RunnerSettings
from runners.sandbox import Limits, Process, ProcessGroups
from tests.waiting import eventually

PID = "import os\nreturn os.getpid()"
NOWHERE = Path("nowhere") / "python"
SETTINGS = RunnerSettings(max_contexts=2)


@pytest.fixture
async def runner() -> AsyncIterator[ProcessRunner]:
    made = ProcessRunner(SETTINGS)
    yield made
    await made.close()


def call_of(
    body: str, *payloads: object, name: str = "f", tenant: str = "acme", **parts: str
) -> Call:
    definition = Definition(lang="python", body=body, **parts)
    return Call(
        handler=Handler(tenant=tenant, name=name, version=1, definition=definition),
        data=b"".join(json.dumps(payload).encode() + b"\n" for payload in payloads),
        count=len(payloads),
        spans=(Span(post="p", first=0, count=len(payloads)),),
        attempt=1,
        job_timeout_s=10.0,
        budget_s=60.0,
    )


def values(outcome: Outcome) -> list[object]:
    assert outcome.stop is None, outcome.stop
    return [json.loads(line) for line in outcome.out.splitlines()]


async def answers(runner: ProcessRunner, body: str, *payloads: object, **more: str) -> list[object]:
    return values(await runner.run(call_of(body, *payloads, **more)))


@pytest.mark.checklist("M35")
async def test_a_context_is_shared_by_type_or_eid_and_never_by_tenants() -> None:
    runner = ProcessRunner(RunnerSettings(max_contexts=8))
    try:
        pids = [
            (await answers(runner, PID, 1, name=name, tenant=tenant, eid=eid))[0]
            for tenant, name, eid in (
                ("acme", "f", ""),
                ("acme", "f", ""),
                ("acme", "g", ""),
                ("acme", "f", "shared"),
                ("acme", "g", "shared"),
                ("zeta", "f", ""),
                ("zeta", "f", "shared"),
            )
        ]
    finally:
        await runner.close()
    assert pids[0] == pids[1]
    assert pids[3] == pids[4]
    assert len(set(pids)) == 5


async def test_handlers_that_share_a_context_keep_their_own_names(runner: ProcessRunner) -> None:
    for name in ("f", "g", "f"):
        body, before = "return who", f"who = {name!r}"
        assert await answers(runner, body, 1, name=name, before=before, eid="e") == [name]


@pytest.mark.checklist("M73", "M74", "M75", "M76", "M77")
async def test_the_parts_run_as_often_as_promised(runner: ProcessRunner) -> None:
    parts = {
        "before": "seen = ['before']",
        "beforeEach": "seen.append('each')",
        "afterEach": "seen.append('after')",
    }
    body = "seen.append(payload)\nif payload == 2: raise Failed(2)\nreturn list(seen)"
    first = await answers(runner, body, 1, 2, **parts)
    assert first == [["before", "each", 1], 2]
    second = await answers(runner, body, 3, **parts)
    assert second == [["before", "each", 1, 2, "after", "each", 3]]


@pytest.mark.checklist("M75", "M76")
async def test_trouble_around_a_batch(runner: ProcessRunner) -> None:
    outcome = await runner.run(call_of("return 1", 1, 2, beforeEach="1/0"))
    assert [(bad.index, bad.exitcode) for bad in outcome.bad] == [(0, 500), (1, 500)]
    assert b"ZeroDivisionError" in outcome.out
    outcome = await runner.run(call_of("return 1", 1, 2, name="g", afterEach="1/0"))
    assert (outcome.ok, b"afterEach: ZeroDivisionError" in outcome.log) == (2, True)
    outcome = await runner.run(
        call_of("return 1", 1, 2, name="h", afterEach="import os; os._exit(1)")
    )
    assert (outcome.ok, outcome.stop) == (2, None)


@pytest.mark.checklist("M78")
async def test_a_context_is_recycled_after_its_number_of_jobs() -> None:
    runner = ProcessRunner(replace(SETTINGS, max_jobs_per_context=4))
    try:
        pids = [(await answers(runner, PID, 1, 2))[0] for _ in range(6)]
    finally:
        await runner.close()
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4] == pids[5]


async def test_idle_contexts_are_reaped(runner: ProcessRunner) -> None:
    (pid,) = await answers(runner, PID, 1)
    now = asyncio.get_running_loop().time()
    assert runner.reap(now) == 0
    assert runner.reap(now + SETTINGS.idle_s + 1) == 1
    assert not runner.warm()
    await eventually(lambda: not psutil.pid_exists(int(str(pid))))


async def test_a_context_of_another_type_makes_way(runner: ProcessRunner) -> None:
    for name in ("f", "g", "h"):
        await answers(runner, PID, 1, name=name)
    assert {key[2] for key in runner.warm()} == {"g@1", "h@1"}
    assert "acme/g@1 IDLE calls=1" in repr(runner)


async def test_calls_wait_in_their_order() -> None:
    runner = ProcessRunner(RunnerSettings(max_contexts=1))
    order: list[str] = []

    async def run(name: str) -> None:
        await answers(runner, "import time\ntime.sleep(0.06)", 1, name=name)
        order.append(name)

    try:
        await asyncio.gather(*(run(name) for name in ("f", "g", "f2", "g2")))
    finally:
        await runner.close()
    assert order == ["f", "g", "f2", "g2"]


async def test_a_cancelled_wait_holds_nobody_up() -> None:
    runner = ProcessRunner(RunnerSettings(max_contexts=1))
    body = "import time\ntime.sleep(payload)"
    try:
        running = asyncio.create_task(answers(runner, body, 0.2))
        waiting = asyncio.create_task(answers(runner, body, 0, name="g"))
        await eventually(lambda: "waiting=1" in repr(runner))
        waiting.cancel()
        assert await answers(runner, PID, 1, name="h")
        assert await running == [None]
    finally:
        await runner.close()


class Counting(ProcessGroups):
    """Counts the processes started."""

    started = 0

    async def spawn(self, language: Language, fds: Mapping[int, int], limits: Limits) -> Process:
        self.started += 1
        return await super().spawn(language, fds, limits)


@pytest.fixture
async def narrow() -> AsyncIterator[tuple[ProcessRunner, Counting]]:
    """A runner of one context, warm and known to be fast."""
    confinement = Counting()
    runner = ProcessRunner(RunnerSettings(max_contexts=1), confinement=confinement)
    await runner.run(MODE())
    yield runner, confinement
    await runner.close()


def MODE(*payloads: object) -> Call:
    body = (
        "import os, time\n"
        "if payload == 'exit': os._exit(1)\n"
        "if payload == 'hang': time.sleep(60)\n"
        "return payload"
    )
    return call_of(body, *(payloads or ("ok",)))


@pytest.mark.checklist("M91", "M92")
async def test_a_second_call_waits_in_the_pipe(narrow: tuple[ProcessRunner, Counting]) -> None:
    runner, confinement = narrow
    handler = MODE().handler
    assert runner.room(handler) == 1
    outcomes = await asyncio.gather(*(runner.run(MODE(n, n)) for n in range(50)))
    assert [values(outcome) for outcome in outcomes] == [[n, n] for n in range(50)]
    assert confinement.started == 1


@pytest.mark.checklist("M91", "M92")
async def test_a_call_whose_context_died_before_it_is_run_again(
    narrow: tuple[ProcessRunner, Counting],
) -> None:
    runner, confinement = narrow
    died, second = await asyncio.gather(runner.run(MODE("exit")), runner.run(MODE(2)))
    assert died.stop is not None
    assert (died.stop.reason, died.stop.blamed) == (StopReason.DIED, 0)
    assert values(second) == [2]
    assert confinement.started == 2


async def test_cancelling_a_call_in_the_pipe_leaves_the_running_one_alone(
    narrow: tuple[ProcessRunner, Counting],
) -> None:
    runner, _ = narrow
    first = asyncio.create_task(runner.run(call_of(MODE().handler.definition.body, *[1] * 5000)))
    second = asyncio.create_task(runner.run(MODE("hang")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second.cancel()
    assert (await first).ok == 5000
    assert values(await runner.run(MODE(3))) == [3]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return payload + 1", 2),
        ("# a word first\n\nif payload:\n    return '''a\n  b'''", "a\n  b"),
        ("handler = lambda payload, context: payload + 2", 3),
        ("def handler(payload, context):\n    return add(payload)\ndef add(p): return p + 3", 4),
        ("x = 5", None),
        ("# nothing", None),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int'\n"
         "def handler(payload, context): return P(payload).x", 1),
        ("import json, builtins\njson.dumps = builtins.print = None\nreturn payload", 1),
    ],
)  # fmt: skip
async def test_a_body_may_be_a_module_or_a_function_body(
    runner: ProcessRunner, body: str, expected: object
) -> None:
    assert await runner.check(Definition(lang="python", body=body)) is None
    assert await answers(runner, body, 1, 1) == [expected, expected]


@pytest.mark.parametrize(
    ("parts", "line", "message"),
    [
        ({"body": "x = 1\nreturn ("}, 2, "body: SyntaxError"),
        ({"body": "return 1", "afterEach": "\n\nif"}, 3, "afterEach: SyntaxError"),
        ({"body": "return 1", "before": "return 1"}, 1, "before: SyntaxError: 'return' outside"),
        ({"body": "\nasync def handler(p, c): pass"}, 2, "async"),
        ({"body": "return " + "(" * 5000}, 1, "SyntaxError"),
    ],
)
async def test_what_does_not_compile_is_refused(
    runner: ProcessRunner, parts: dict[str, str], line: int, message: str
) -> None:
    error = await runner.check(Definition(lang="python", **parts))
    assert error is not None
    assert message in error.message
    assert error.line == line


async def test_a_check_runs_nothing(runner: ProcessRunner) -> None:
    source = "import os\nos._exit(1)"
    definition = Definition(lang="python", body=source, before=source, beforeEach=source)
    assert await runner.check(definition) is None


@pytest.mark.parametrize(
    ("parts", "detail"),
    [
        ({"body": "return 1", "before": "\n1/0"}, "line 2: before: ZeroDivisionError"),
        ({"body": "return ("}, "line 1: body: SyntaxError"),
        ({"body": "def handler(p, c): pass\ndel handler"}, "KeyError"),
        ({"body": "return 1", "before": "import os; os._exit(7)"}, "exited with code 7"),
        ({"body": "return 1", "before": "while True: pass"}, "0.5 s"),
    ],
)
async def test_what_does_not_load_is_told(parts: dict[str, str], detail: str) -> None:
    runner = ProcessRunner(replace(SETTINGS, start_timeout_s=0.5))
    try:
        outcome = await runner.run(call_of(parts.pop("body"), 1, **parts))
    finally:
        await runner.close()
    assert outcome.stop is not None
    assert (outcome.done, outcome.stop.reason) == (0, StopReason.UNLOADABLE)
    assert detail in outcome.stop.detail


async def test_a_child_has_nothing_of_ours(runner: ProcessRunner) -> None:
    leaked = os.dup(0)
    os.set_inheritable(leaked, True)
    os.environ["HEARTH_TEST_CANARY"] = "x"
    body = (
        "import os, resource, sys\n"
        "fds = [n for n in range(256) if os.path.exists(f'/proc/self/fd/{n}')]\n"
        "limits = [resource.getrlimit(k) for k in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)]\n"
        "return [fds, dict(os.environ), os.getcwd(), limits, os.getsid(0) == os.getpid(),"
        " [p for p in sys.path if 'site-packages' in p]]"
    )
    try:
        (seen,) = await answers(runner, body, 1)
    finally:
        os.close(leaked)
        del os.environ["HEARTH_TEST_CANARY"]
    assert isinstance(seen, list)
    fds, environment, *others = seen
    assert fds == [0, 1, 2, 3, 4]
    assert set(environment) <= {"LANG", "TZ", "LC_CTYPE"}
    assert others == ["/", [[0, 0], [64, 64]], True, []]


async def test_memory_is_limited() -> None:
    assert resource.RLIMIT_DATA
    runner = ProcessRunner(replace(SETTINGS, memory_max_bytes=64 << 20))
    try:
        outcome = await runner.run(call_of("return len(bytearray(payload))", 1 << 27, 5))
    finally:
        await runner.close()
    assert [(bad.index, bad.exitcode) for bad in outcome.bad] == [(0, 500)]
    assert b"MemoryError" in outcome.out


async def test_a_child_that_cannot_be_started_is_told() -> None:
    missing = Language(name="python", interpreter=NOWHERE, flags=(), host=NOWHERE)
    confinement = ProcessGroups()
    confinement._setpriv = None
    runner = ProcessRunner(SETTINGS, confinement=confinement, languages={"python": missing})
    descriptors = psutil.Process().num_fds()
    outcome = await runner.run(call_of("return 1", 1))
    assert outcome.stop is not None
    assert outcome.stop.reason is StopReason.CLOSED
    with pytest.raises(OSError, match="No such file"):
        await runner.check(Definition(lang="python", body="return 1"))
    await runner.close()
    assert psutil.Process().num_fds() == descriptors


async def test_no_descriptor_is_left_open() -> None:
    descriptors = psutil.Process().num_fds()
    runner = ProcessRunner(SETTINGS)
    for name in ("f", "g", "h"):
        await answers(runner, PID, 1, name=name)
    await runner.run(call_of("import os\nos._exit(1)", 1))
    await runner.close()
    assert psutil.Process().num_fds() == descriptors


def test_it_works_under_uvloop() -> None:
    async def main() -> list[object]:
        runner = ProcessRunner(SETTINGS)
        try:
            big = ["x" * 1000] * 3000
            assert await answers(runner, "return payload", *big) == big
            lost = await runner.run(call_of("import os\nos._exit(1)", 1, name="g"))
            assert lost.stop is not None
            assert lost.stop.reason is StopReason.DIED
            return await answers(runner, "return payload", 1)
        finally:
            await runner.close()

    assert uvloop.run(main()) == [1]
