"""What every runner promises, asked of each of them with the same handler in its own language.

A runner joins by adding a row to BODIES: a handler whose payload says what it is to do.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from handlers.definition import Definition, Handler
from runners.base import Call, Outcome, Runner, Span, StopReason
from runners.process import ProcessRunner, RunnerSettings
from runners.wire import LOG_MAX, RESULT_MAX
from tests.waiting import eventually

PYTHON = """
import os, time

def handler(payload, context):
    do = payload.get("do", "echo") if isinstance(payload, dict) else "echo"
    if do == "echo":
        return payload
    if do == "raw":
        return list(context.raw)
    if do == "about":
        left = context.deadline - time.time()
        return {"id": context.id, "attempt": context.attempt, "left": left}
    if do == "fail":
        raise Failed({"why": "asked to"})
    if do == "retry":
        raise Retry(delay=payload.get("delay"), value="later")
    if do == "raise":
        raise KeyError("nothing here")
    if do == "leave":
        raise SystemExit(0)
    if do == "unprintable":
        return {1, 2}
    if do == "nan":
        return float("nan")
    if do == "hang":
        while True:
            time.sleep(1)
    if do == "spin":
        while True:
            pass
    if do == "exit":
        os._exit(3)
    if do == "print":
        print("x" * payload["size"])
        context.log("and a word")
    if do == "sleep":
        time.sleep(payload["s"])
    if do == "garbage":
        os.write(4, payload["text"].encode())
    if do == "deaf":
        os.close(3)
    if do == "mute":
        os.close(4)
        time.sleep(60)
    if do == "big":
        return "x" * payload["size"]
    if do == "fork":
        if os.fork() == 0:
            time.sleep(60)
    if do == "pid":
        return os.getpid()
    return None
"""
BODIES = {"python": PYTHON}

Run = Callable[..., Awaitable[Outcome]]


@pytest.fixture(params=BODIES)
def lang(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def runner(lang: str) -> AsyncIterator[Runner]:
    before = set(psutil.Process().children(recursive=True))
    made = ProcessRunner(RunnerSettings(max_contexts=2))
    yield made
    await made.close()
    left = set(psutil.Process().children(recursive=True)) - before
    assert not left, "processes were left behind"


@pytest.fixture
def run(runner: Runner, lang: str) -> Run:
    """Run payloads (bytes as they are, others as JSON) and check what holds for every outcome."""

    async def run(*payloads: object, name: str = "mode", **options: object) -> Outcome:
        call = call_of(lang, *payloads, name=name, **options)
        outcome = await runner.run(call)
        assert outcome.ok + len(outcome.bad) == outcome.done <= call.count
        assert (outcome.stop is None) == (outcome.done == call.count)
        assert len(values(outcome)) == outcome.done
        assert [bad.index for bad in outcome.bad] == sorted({bad.index for bad in outcome.bad})
        return outcome

    return run


def call_of(lang: str, *payloads: object, name: str = "mode", **options: object) -> Call:
    lines = [p if isinstance(p, bytes) else json.dumps(p).encode() for p in payloads]
    definition = Definition(lang=lang, body=BODIES[lang])
    fields: dict[str, object] = {
        "handler": Handler(tenant="acme", name=name, version=1, definition=definition),
        "data": b"".join(line + b"\n" for line in lines),
        "count": len(lines),
        "spans": (Span(post="p", first=5, count=1), Span(post="q", first=0, count=len(lines) - 1)),
        "attempt": 2,
        "job_timeout_s": 10.0,
        "budget_s": 60.0,
    }
    return Call(**(fields | options))  # type: ignore[arg-type]


def values(outcome: Outcome) -> list[object]:
    return [json.loads(line) for line in outcome.out.splitlines()]


def do(what: str, **more: object) -> dict[str, object]:
    return {"do": what, **more}


@pytest.mark.checklist("M39", "M92")
async def test_each_way_to_end_has_its_exitcode(run: Run) -> None:
    outcome = await run(
        {"n": 1}, do("fail"), do("retry", delay=2.5), do("retry"), do("raise"), do("leave")
    )
    codes = [(bad.index, bad.exitcode, bad.delay_s) for bad in outcome.bad]
    assert codes == [(1, 400, None), (2, 100, 2.5), (3, 100, None), (4, 500, None), (5, 500, None)]
    first, failed, retried, _, raised, _ = values(outcome)
    assert (first, failed, retried) == ({"n": 1}, {"why": "asked to"}, "later")
    assert isinstance(raised, dict)
    assert raised["error"] == "KeyError: 'nothing here'"
    assert raised["trace"].startswith("body:")


@pytest.mark.checklist("M39")
@pytest.mark.parametrize("what", ["unprintable", "nan"])
async def test_a_result_that_is_no_json_is_an_error(run: Run, what: str) -> None:
    outcome = await run(do(what), 1)
    assert [(bad.index, bad.exitcode) for bad in outcome.bad] == [(0, 500)]


@pytest.mark.checklist("M39")
@pytest.mark.parametrize("delay", [-1, 1e12, "soon"])
async def test_a_delay_that_is_none_is_an_error(run: Run, delay: object) -> None:
    outcome = await run(do("retry", delay=delay))
    assert [bad.exitcode for bad in outcome.bad] == [500]


@pytest.mark.checklist("M5")
@pytest.mark.parametrize(
    ("line", "seen"),
    [
        (b"", ""),
        (b"no json", "no json"),
        (b'{"a": 1} x', '{"a": 1} x'),
        (b"\xff\xfe", "\udcff\udcfe"),
        (b'"\xff"', "\udcff"),
        (b"a\x00b", "a\x00b"),
        (b"a\r", "a\r"),
        (b' {"a": 1}\r', {"a": 1}),
        ("\u2028\u0085\x0c".encode(), "\u2028\u0085\x0c"),
        (b"NaN", "NaN"),
        (b"1" * 5000, "1" * 5000),
        (b"[" * 100_000, "[" * 100_000),
        (b'"' + b"x" * (1 << 20) + b'"', "x" * (1 << 20)),
    ],
    ids=lambda value: repr(value)[:20],
)
async def test_any_line_reaches_the_handler(run: Run, line: bytes, seen: object) -> None:
    outcome = await run(line, 7)
    assert values(outcome) == [seen, 7]


@pytest.mark.checklist("M5")
async def test_the_payload_is_there_as_the_bytes_that_were_posted(run: Run) -> None:
    line = b' {"do" : "raw", "x": "\xff\xc3\xa9"}\r'
    assert values(await run(1, line)) == [1, list(line)]


async def test_the_handler_is_told_about_its_job(run: Run) -> None:
    abouts = values(await run(do("about"), do("about"), do("about"), job_timeout_s=10.0))
    assert [about["id"] for about in abouts] == ["p-5", "q-0", "q-1"]  # type: ignore[index]
    for about in abouts:
        assert isinstance(about, dict)
        assert about["attempt"] == 2
        assert 8 < about["left"] <= 10


@pytest.mark.parametrize("what", ["hang", "spin"])
async def test_a_job_over_its_time_is_killed_and_found(run: Run, what: str) -> None:
    batch = (1, 2, do(what), 3)
    outcome = await run(*batch, job_timeout_s=0.2)
    assert outcome.stop is not None
    assert (outcome.stop.reason, outcome.stop.blamed) == (StopReason.TIMEOUT, None)
    careful = await run(*batch, job_timeout_s=0.2, careful=True)
    assert careful.stop is not None
    assert (careful.stop.blamed, values(careful)) == (2, [1, 2])
    last = await run(do(what), job_timeout_s=0.2)
    assert last.stop is not None
    assert last.stop.blamed == 0
    assert values(await run(1)) == [1]


async def test_the_time_is_for_each_job_and_not_for_the_batch(run: Run) -> None:
    outcome = await run(*[do("sleep", s=0.15)] * 6, job_timeout_s=0.3)
    assert outcome.done == 6


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (do("exit"), StopReason.DIED),
        (do("mute"), StopReason.DIED),
        (do("garbage", text="hello\n"), StopReason.PROTOCOL),
        (do("garbage", text="\n"), StopReason.PROTOCOL),
        (do("garbage", text='{"op": "ready"}\n'), StopReason.PROTOCOL),
        (do("garbage", text='{"op":"part","done":9,"bad":[],"out":0,"log":0}\n'), "protocol"),
        (do("garbage", text="x" * 100_000), StopReason.PROTOCOL),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_context_that_misbehaves_is_replaced(
    run: Run, job: object, reason: StopReason
) -> None:
    outcome = await run(1, 2, job, 3, careful=True)
    assert outcome.stop is not None
    assert (outcome.stop.reason, outcome.stop.blamed) == (reason, 2)
    assert values(outcome) == [1, 2]
    assert values(await run(5)) == [5]


async def test_a_context_that_cannot_be_asked_again_is_replaced(run: Run) -> None:
    assert (await run(do("deaf"))).done == 1
    assert values(await run(5)) == [5]


async def test_what_a_context_leaves_running_is_ended(run: Run) -> None:
    assert (await run(do("fork"))).done == 1
    # The fixture's check for processes left behind does the rest.


async def test_a_context_killed_from_outside(runner: Runner, run: Run, lang: str) -> None:
    (pid,) = values(await run(do("pid")))
    assert isinstance(pid, int)
    running = asyncio.create_task(run(do("hang")))
    await eventually(lambda: runner.warm() == set())
    os.kill(pid, signal.SIGKILL)
    outcome = await running
    assert outcome.stop is not None
    assert outcome.stop.reason is StopReason.DIED
    assert "SIGKILL" in outcome.stop.detail
    assert values(await run(5)) == [5]


async def test_prints_are_kept_up_to_a_limit(run: Run) -> None:
    outcome = await run(do("print", size=3), 1)
    assert (outcome.log, values(outcome)) == (b"xxx\nand a word\n", [None, 1])
    outcome = await run(do("print", size=1 << 20), 2)
    assert outcome.log.startswith(b"x" * LOG_MAX)
    assert b"more bytes were printed" in outcome.log[LOG_MAX:]
    assert values(outcome) == [None, 2]


@pytest.mark.checklist("M88")
async def test_a_result_may_have_16_mb_and_no_more(run: Run) -> None:
    quotes = 2
    outcome = await run(1, do("big", size=RESULT_MAX - quotes))
    assert (outcome.done, outcome.ok) == (2, 2)
    outcome = await run(1, do("big", size=RESULT_MAX), 2)
    assert [(bad.index, bad.exitcode) for bad in outcome.bad] == [(1, 500)]
    first, refused, last = values(outcome)
    assert isinstance(refused, dict)
    assert (first, refused["error"], last) == (1, "ValueError: result over 16 MB", 2)


async def test_a_batch_stops_before_its_results_are_too_large(run: Run) -> None:
    outcome = await run(*[do("big", size=6 << 20)] * 5)
    assert outcome.stop is not None
    assert (outcome.stop.reason, outcome.stop.blamed) == (StopReason.OUTPUT, None)
    assert outcome.done == 3


async def test_a_batch_stops_when_its_budget_is_over(run: Run) -> None:
    outcome = await run(*[do("sleep", s=0.05)] * 50, budget_s=0.2)
    assert outcome.stop is not None
    assert (outcome.stop.reason, outcome.stop.blamed) == (StopReason.BUDGET, None)
    assert 1 <= outcome.done < 10
    assert (await run(1, 2, budget_s=0.0)).done == 1


async def test_large_batches_flow_both_ways_at_once(run: Run) -> None:
    payloads = ["x" * 2000] * 2000
    assert values(await run(*payloads)) == payloads
    assert values(await run(*payloads[:500], careful=True)) == payloads[:500]


async def test_cancelling_kills_the_context(runner: Runner, run: Run) -> None:
    (pid,) = values(await run(do("pid")))
    assert isinstance(pid, int)
    running = asyncio.create_task(run(do("hang")))
    await eventually(lambda: runner.warm() == set())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: not psutil.pid_exists(pid))
    assert values(await run(5)) == [5]


@pytest.mark.checklist("M91", "M92")
async def test_closing_answers_every_call_once(runner: Runner, run: Run) -> None:
    await run(1)
    calls = [asyncio.create_task(run(do("hang"))) for _ in range(5)]
    await eventually(lambda: runner.warm() == set())
    await runner.close()
    for call in calls:
        stop = (await call).stop
        assert stop is not None
        assert stop.reason is StopReason.CLOSED
    late = (await run(1)).stop
    assert late is not None
    assert late.reason is StopReason.CLOSED


@pytest.mark.checklist("M36")
async def test_room_and_warm_are_told(runner: Runner, run: Run, lang: str) -> None:
    handler = call_of(lang, 1).handler
    assert (runner.room(handler), set(runner.warm())) == (2, set())
    await run(1)
    assert (runner.room(handler), set(runner.warm())) == (2, {handler.key})


@pytest.mark.checklist("M93")
async def test_an_unknown_language_is_refused(runner: Runner, lang: str) -> None:
    assert lang in runner.langs
    assert "cobol" not in runner.langs
    definition = Definition(lang="cobol", body="STOP RUN.")
    assert await runner.check(definition) is not None


async def test_a_handler_that_would_load_passes_the_check(runner: Runner, lang: str) -> None:
    assert await runner.check(Definition(lang=lang, body=BODIES[lang])) is None


async def test_a_context_dies_with_its_parent(tmp_path: Path, lang: str) -> None:
    script = Path(__file__).with_name("hanging_parent.py")
    root = script.parents[2]
    parent = psutil.Popen([sys.executable, str(script), lang], cwd=root)
    try:
        await eventually(lambda: bool(parent.children()))
        (child,) = parent.children()
        parent.kill()
        await eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    finally:
        parent.kill()
        parent.wait()
