"""The decoder believes nothing: what is valid is taken, all else is a ProtocolError."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from handlers.definition import Definition, Handler
from runners.base import Bad, Call, Span, Spawned, StopReason
from runners.wire import (
    LOG_MAX,
    OUT_MAX,
    SPAWN_BYTES,
    Decoder,
    ProtocolError,
    Tally,
    encode_check,
    encode_load,
    encode_run,
)

READY = b'{"op": "ready", "run_s": 0.25, "cpu_s": 0.125}\n'


def frame(head: dict[str, object], *blocks: bytes) -> bytes:
    names = ("out", "log", "jobs")
    sizes = dict.fromkeys(names, 0) | {
        name: len(block) for name, block in zip(names, blocks, strict=False)
    }
    return json.dumps(sizes | head).encode() + b"\n" + b"".join(blocks)


def part(done: int, bad: object = (), /, *blocks: bytes, **more: object) -> bytes:
    return frame({"op": "part", "done": done, "bad": bad} | more, *blocks)


def end(done: int, bad: object = (), /, *blocks: bytes, **more: object) -> bytes:
    times = {"run_s": 0.5, "cpu_s": 0, "stop": None}
    return frame({"op": "end", "done": done, "bad": bad} | times | more, *blocks)


def tally_of(count: int, *frames: bytes, careful: bool = False) -> Tally:
    decoder, tally = Decoder(), Tally(count=count, careful=careful)
    decoder.feed(b"".join(frames))
    while not tally.ended and decoder.report(tally):
        pass
    return tally


def test_a_run_is_the_sum_of_its_frames() -> None:
    outcome = tally_of(
        3,
        part(2, [[1, 100, 2.5]], b"1\n2\n", b"a"),
        end(3, [[2, 500, None]], b"3\n", b"b"),
    ).outcome()
    assert (outcome.done, outcome.ok, outcome.stop) == (3, 1, None)
    assert outcome.bad == (Bad(1, 100, 2.5), Bad(2, 500))
    assert (outcome.out, outcome.log, outcome.run_s) == (b"1\n2\n3\n", b"ab", 0.5)


def test_frames_may_arrive_in_any_pieces() -> None:
    data = part(2, [[1, 400, None]], b"1\n2\n", b"log") + end(3, [], b"3\n")
    whole = tally_of(3, data).outcome()
    decoder, tally = Decoder(), Tally(count=3, careful=False)
    for position in range(len(data)):
        decoder.feed(data[position : position + 1])
        decoder.report(tally)
    assert tally.ended
    assert decoder.is_empty
    assert tally.outcome() == whole


@pytest.mark.parametrize(("word", "reason"), [("budget", StopReason.BUDGET), ("output", "output")])
def test_a_run_may_stop_early_with_a_reason(word: str, reason: StopReason) -> None:
    stop = tally_of(3, end(1, [], b"1\n", stop=word)).stop
    assert stop is not None
    assert (stop.reason, stop.blamed) == (reason, None)


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"null\n",
        b"[]\n",
        b"{}\n",
        b"\xff\n",
        b'{"op": ["part"]}\n',
        b"[" * 8000 + b"\n",
        b"x" * (1 << 20),
        READY,
        part(1, [], b"1\n", extra=1),
        part(0),
        part(4, [], b"1\n2\n3\n4\n"),
        part(-1),
        part(True, [], b"1\n"),
        part(1.0, [], b"1\n"),  # type: ignore[arg-type]
        part(2**70, [], b"1\n"),
        part(1, [], b"1"),
        part(1, [], b"1\n2\n"),
        part(1, [], b"1\n2"),
        part(1, [], b""),
        part(1, [], b"1\n", out=OUT_MAX + 1),
        part(1, [], b"1\n", out=-2),
        part(1, [], b"1\n", log=LOG_MAX + 1000),
        part(1, [], b"1\n", b"", b"0 t|x"),
        part(1, [], b"1\n", b"", b"0 t\n"),
        part(1, [], b"1\n", b"", b"t|x\n"),
        part(1, [], b"1\n", b"", b" t|x\n"),
        part(1, [], b"1\n", b"", b"1 t|x\n"),
        part(1, [], b"1\n", b"", b"-0 t|x\n"),
        part(1, [], b"1\n", b"", b"9" * 5000 + b" t|x\n"),
        part(2, [], b"1\n2\n", b"", b"1 t|x\n0 t|x\n"),
        part(1, [], b"1\n") + part(2, [], b"2\n", b"", b"0 t|x\n"),
        part(1, [], b"1\n", jobs=2 * SPAWN_BYTES + (1 << 20) + 1),
        part(1, [], b"1\n", jobs=-1),
        part(1, None, b"1\n"),
        part(1, {}, b"1\n"),
        part(1, [0], b"1\n"),
        part(1, [[0, 500]], b"1\n"),
        part(1, [[0, 200, None]], b"1\n"),
        part(1, [[0, 302, None]], b"1\n"),
        part(1, [[0, 99, None]], b"1\n"),
        part(1, [[0, 600, None]], b"1\n"),
        part(1, [[0, "500", None]], b"1\n"),
        part(1, [[0, 500.0, None]], b"1\n"),
        part(1, [[0, 100, -1]], b"1\n"),
        part(1, [[0, 100, True]], b"1\n"),
        part(1, [[0, 100, "1"]], b"1\n"),
        part(1, [[1, 500, None]], b"1\n"),
        part(1, [[-1, 500, None]], b"1\n"),
        part(2, [[1, 500, None], [0, 500, None]], b"1\n2\n"),
        part(2, [[0, 500, None], [0, 500, None]], b"1\n2\n"),
        part(1, [], b"1\n") + part(2, [[0, 500, None]], b"2\n"),
        end(2, [], b"1\n2\n"),
        end(0, stop="budget"),
        end(2, [], b"1\n2\n", stop="timeout"),
        end(2, [], b"1\n2\n", stop=["budget"]),
        end(3, [], b"1\n2\n3\n", stop="budget"),
        end(3, [], b"1\n2\n3\n", run_s=-1),
        end(3, [], b"1\n2\n3\n", cpu_s=1e300),
    ],
    ids=lambda data: repr(data[:60]),
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        tally_of(3, data)


@pytest.mark.checklist("M37")
def test_spawned_jobs_come_with_the_line_that_spawned_them() -> None:
    outcome = tally_of(
        3,
        part(2, [], b"1\n2\n", b"", b"0 a|x\n0 b@2|y|z\n1 a|\n"),
        end(3, [], b"3\n", b"log", b"2 a: b|\xff \n"),
    ).outcome()
    assert outcome.log == b"log"
    assert outcome.spawned == (
        Spawned(0, "a", b"x"),
        Spawned(0, "b@2", b"y|z"),
        Spawned(1, "a", b""),
        Spawned(2, "a: b", b"\xff "),
    )


def test_the_spawned_jobs_of_all_parts_together_are_limited() -> None:
    lines = b"".join(b"%d t|" % index + b"x" * SPAWN_BYTES + b"\n" for index in range(3))
    cuts = [lines[at : at + SPAWN_BYTES + 5] for at in range(0, len(lines), SPAWN_BYTES + 5)]
    tally_of(3, *(part(n + 1, [], b"1\n", b"", cuts[n]) for n in range(2)))
    with pytest.raises(ProtocolError):
        tally_of(3, *(part(n + 1, [], b"1\n", b"", cuts[n]) for n in range(3)))


def test_an_answer_tells_what_loading_took() -> None:
    decoder = Decoder()
    decoder.feed(READY)
    answer = decoder.answer()
    assert answer is not None
    assert (answer.error, answer.run_s, answer.cpu_s) == (None, 0.25, 0.125)


@pytest.mark.parametrize(
    "data",
    [
        b'{"op": "ready"}\n',
        b'{"op": "ready", "run_s": -1, "cpu_s": 0}\n',
        b'{"op": "ready", "run_s": 0, "cpu_s": "0"}\n',
        b'{"op": "refused", "message": 1, "line": 1}\n',
        part(1, [], b"1\n"),
    ],
)
def test_any_other_answer_is_refused(data: bytes) -> None:
    decoder = Decoder()
    decoder.feed(data)
    with pytest.raises(ProtocolError):
        decoder.answer()


def test_secrets_travel_with_the_load_alone_and_a_change_makes_another_slot() -> None:
    definition = Definition(lang="python", body="return 1")
    handler = Handler(tenant="acme", name="f", version=3, definition=definition)
    plain = json.loads(encode_load(handler))
    assert (plain["slot"], plain["secrets"]) == ("f@3", {})
    slots = set()
    for value in ("first-value", "second-value"):
        load = json.loads(encode_load(handler, {"key": value}))
        call = Call(
            handler=handler,
            data=b"1\n",
            count=1,
            spans=(Span(post="p", first=0, count=1),),
            attempt=1,
            job_timeout_s=1.0,
            budget_s=1.0,
            secrets={"key": value},
        )
        run = encode_run(call)
        assert load["secrets"] == {"key": value}
        assert json.loads(run)["slot"] == load["slot"]
        assert value not in run.decode() + load["slot"] + repr(call)
        slots.add(load["slot"])
    assert len(slots | {"f@3"}) == 3
    assert "secrets" not in json.loads(encode_check(definition))


def test_the_results_of_all_parts_together_are_limited() -> None:
    line = b"x" * (OUT_MAX // 2) + b"\n"
    with pytest.raises(ProtocolError):
        tally_of(3, part(1, [], line), part(2, [], line), part(3, [], line))


@pytest.mark.parametrize(
    ("done", "careful", "reason", "blamed"),
    [
        (1, False, StopReason.DIED, None),
        (1, True, StopReason.DIED, 1),
        (2, False, StopReason.TIMEOUT, 2),
        (1, True, StopReason.CLOSED, None),
    ],
)
def test_blame_is_exact_or_none(
    done: int, careful: bool, reason: StopReason, blamed: int | None
) -> None:
    tally = tally_of(3, part(done, [], b"1\n" * done), careful=careful)
    stop = tally.lost(reason, "").stop
    assert stop is not None
    assert stop.blamed == blamed


def test_a_run_that_is_lost_with_all_jobs_done_is_complete() -> None:
    outcome = tally_of(1, part(1, [], b"1\n")).lost(StopReason.DIED, "")
    assert (outcome.done, outcome.stop) == (1, None)


def test_twenty_thousand_mutated_frames() -> None:
    """Whatever arrives, it is a valid outcome or a ProtocolError, never anything else."""
    rng = random.Random(20_000)
    seeds = [
        part(2, [[0, 500, None], [1, 100, 1.5]], b"1\n2\n", b"log"),
        part(1, [], b"1\n") + end(3, [[2, 400, None]], b"2\n3\n", b"x"),
        end(2, [], b"1\n2\n", stop="budget"),
        part(2, [], b"1\n2\n", b"", b"0 a|x\n1 b|y\n"),
        READY,
        b'{"op":"refused","message":"no","line":3}\n',
    ]
    mutations: list[Callable[[bytearray, int], None]] = [
        lambda data, at: data.__setitem__(at, rng.randrange(256)),
        lambda data, at: data.__delitem__(slice(at, at + rng.randrange(1, 9))),
        lambda data, at: data.__setitem__(slice(at, at), data[rng.randrange(at + 1) : at]),
        lambda data, at: data.__setitem__(
            slice(at, at), rng.choice(b'0189-"[]{},:.e\n').to_bytes()
        ),
    ]
    accepted = refused = 0
    for _ in range(20_000):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randrange(1, 4)):
            if data:
                rng.choice(mutations)(data, rng.randrange(len(data)))
        decoder, tally = Decoder(), Tally(count=3, careful=False)
        decoder.feed(bytes(data))
        try:
            if rng.random() < 0.3:
                accepted += decoder.answer() is not None
            else:
                while not tally.ended and decoder.report(tally):
                    accepted += 1
        except ProtocolError:
            refused += 1
        outcome = tally.lost(StopReason.PROTOCOL, "")
        assert outcome.ok + len(outcome.bad) == outcome.done == outcome.out.count(b"\n")
    assert accepted > 500
    assert refused > 5_000
