"""The decoder believes nothing: what is valid is taken, all else is a ProtocolError."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from runners.base import Bad, StopReason
from runners.wire import LOG_MAX, OUT_MAX, Decoder, ProtocolError, Tally


def frame(head: dict[str, object], out: bytes = b"", log: bytes = b"") -> bytes:
    return json.dumps({"out": len(out), "log": len(log)} | head).encode() + b"\n" + out + log


def part(
    done: int, bad: object = (), out: bytes = b"", log: bytes = b"", /, **more: object
) -> bytes:
    return frame({"op": "part", "done": done, "bad": bad} | more, out, log)


def end(
    done: int, bad: object = (), out: bytes = b"", log: bytes = b"", /, **more: object
) -> bytes:
    times = {"run_s": 0.5, "cpu_s": 0, "stop": None}
    return frame({"op": "end", "done": done, "bad": bad} | times | more, out, log)


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
        b'{"op": "ready"}\n',
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
        b'{"op":"ready"}\n',
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
