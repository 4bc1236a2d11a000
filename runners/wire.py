"""The frames between the daemon and a child host: the contract for the next language.

A host is started with frames in on descriptor 3 and frames out on descriptor 4, standard input
empty, standard output and error going nowhere. It ends when descriptor 3 does. A frame is one line
of JSON, the header, followed by as many bytes as the header announces. Requests are answered one
at a time, in their order; the daemon may send the next one before the last is answered.

In (trusted):
    {"op": "load", "slot", "before", "body", "beforeEach", "afterEach"}
        Compile the four sources and run `before` once. `slot` names the handler from now on.
    {"op": "check", …the same}
        Compile only; run nothing.
    {"op": "run", "slot", "bytes", "count", "spans": [[post, first, count], …], "attempt",
     "timeout_s", "budget_s", "careful", "flush_s", "result_max", "out_max", "log_max"}
        + `bytes` bytes: `count` payload lines, newline-ended, any bytes but the newline in them.
Out (believed only as far as this module checks):
    {"op": "ready"}  or  {"op": "refused", "message", "line"}
        The answer to load and check.
    {"op": "part", "done", "bad": [[index, exitcode, delay or null], …], "out", "log"}
        + `out` bytes: one result line of JSON for each job ended since the last frame
        + `log` bytes: what was printed meanwhile.
        `done` counts the batch's jobs so far, `bad` lists the new ones that did not end well. Due
        after a job when `flush_s` have passed since the last frame, or after each job if `careful`.
    {"op": "end", …as part, "run_s", "cpu_s", "stop": null or "budget" or "output"}
        The answer to run. With a `stop` the jobs from `done` onwards have not been begun: at least
        one job was done and `budget_s` were over, or another result might not fit in `out_max`.
Jobs are known by their line number in the batch alone, so no frame can speak of another batch.

This module turns bytes into values and back. It moves no bytes and knows no process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import orjson

from handlers.definition import Definition, Handler
from runners.base import Bad, Call, Outcome, SourceError, Stop, StopReason

FLUSH_S: Final = 0.02
RESULT_MAX: Final = 16 << 20
OUT_MAX: Final = 2 * RESULT_MAX
LOG_MAX: Final = 64 << 10
_LOG_NOTE_MAX: Final = 80  # a host may add a note about what it dropped
_HEADER_MAX: Final = 8 << 10
_HEADER_PER_JOB: Final = 64  # room for a `bad` entry
_FOREVER_S: Final = 1e9

_ANSWERS: Final = {
    "ready": frozenset({"op"}),
    "refused": frozenset({"op", "message", "line"}),
}
_REPORTS: Final = {
    "part": frozenset({"op", "done", "bad", "out", "log"}),
    "end": frozenset({"op", "done", "bad", "out", "log", "run_s", "cpu_s", "stop"}),
}
_STOPS: Final = {"budget": StopReason.BUDGET, "output": StopReason.OUTPUT}


class ProtocolError(Exception):
    """The child sent something that is no valid frame, or not one that is due now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a host says to load and check."""

    error: SourceError | None


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a run has reported so far; becomes the run's Outcome however it ends."""

    count: int
    careful: bool
    done: int = 0
    ended: bool = False
    bad: list[Bad] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)
    logs: list[bytes] = field(default_factory=list)
    out_room: int = OUT_MAX
    log_room: int = LOG_MAX + _LOG_NOTE_MAX
    run_s: float = 0.0
    cpu_s: float = 0.0
    stop: Stop | None = None

    def lost(self, reason: StopReason, detail: str) -> Outcome:
        """The outcome when the context went away under this run."""
        if self.done < self.count:
            exact = self.careful or self.count - self.done == 1
            blamed = self.done if exact and reason is not StopReason.CLOSED else None
            self.stop = Stop(reason=reason, detail=detail, blamed=blamed)
        return self.outcome()

    def outcome(self) -> Outcome:
        return Outcome(
            done=self.done,
            ok=self.done - len(self.bad),
            bad=tuple(self.bad),
            out=b"".join(self.blocks),
            stop=self.stop,
            log=b"".join(self.logs),
            run_s=self.run_s,
            cpu_s=self.cpu_s,
        )


def slot_of(handler: Handler) -> str:
    """The name of a handler within a context; contexts never see a tenant's name."""
    return f"{handler.name}@{handler.version}"


def encode_load(handler: Handler) -> bytes:
    return _sources("load", slot_of(handler), handler.definition)


def encode_check(definition: Definition) -> bytes:
    return _sources("check", "", definition)


def encode_run(call: Call) -> bytes:
    """The header of a run; the call's `data` follows it."""
    return _header(
        {
            "op": "run",
            "slot": slot_of(call.handler),
            "bytes": len(call.data),
            "count": call.count,
            "spans": [(span.post, span.first, span.count) for span in call.spans],
            "attempt": call.attempt,
            "timeout_s": min(call.job_timeout_s, _FOREVER_S),
            "budget_s": min(call.budget_s, _FOREVER_S),
            "careful": call.careful,
            "flush_s": FLUSH_S,
            "result_max": RESULT_MAX,
            "out_max": OUT_MAX,
            "log_max": LOG_MAX,
        }
    )


class Decoder:
    """Takes a child's bytes apart, believing nothing that it has not checked.

    The caller says what it expects by what it asks for: an `answer` or a `report`. Memory stays
    bounded: a size that is too large is refused when it is announced, before it is awaited.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: dict[str, object] | None = None

    @property
    def is_empty(self) -> bool:
        return not self._buffer and self._head is None

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def answer(self) -> Answer | None:
        """The answer to a load or check; None while it is incomplete."""
        head = self._take_head(_ANSWERS, _HEADER_MAX)
        if head is None:
            return None
        self._head = None
        if head["op"] == "ready":
            return Answer(error=None)
        message = head["message"]
        if type(message) is not str or len(message) > _HEADER_MAX:
            raise ProtocolError("message is no short text")
        return Answer(error=SourceError(message=message, line=_integer(head, "line", 0, 10**7)))

    def report(self, tally: Tally) -> bool:
        """Add the next part or end of a run to its tally; False while it is incomplete."""
        left = tally.count - tally.done
        head = self._take_head(_REPORTS, _HEADER_MAX + _HEADER_PER_JOB * left)
        if head is None:
            return False
        is_end = head["op"] == "end"
        # A part without progress is refused, or it could hold off the watch on the job for ever.
        done = _integer(head, "done", tally.done + (not is_end), tally.count)
        out_size = _integer(head, "out", 0, tally.out_room)
        log_size = _integer(head, "log", 0, tally.log_room)
        if len(self._buffer) < out_size + log_size:
            return False
        bad = _bad(head["bad"], tally.done, done)
        if is_end:
            _check_end(head, done, tally)
        self._head = None
        out, log = self._take(out_size), self._take(log_size)
        if out.count(b"\n") != done - tally.done or not (out.endswith(b"\n") or out == b""):
            raise ProtocolError("results are not one line for each job")
        tally.done = done
        tally.bad += bad
        tally.blocks.append(out)
        tally.logs.append(log)
        tally.out_room -= out_size
        tally.log_room -= log_size
        tally.ended = is_end
        return True

    def _take_head(
        self, fields_of: dict[str, frozenset[str]], max_bytes: int
    ) -> dict[str, object] | None:
        """The header now due, kept until its frame is complete."""
        if self._head is not None:
            return self._head
        end = self._buffer.find(b"\n", 0, max_bytes)
        if end < 0:
            if len(self._buffer) >= max_bytes:
                raise ProtocolError("header is too long")
            return None
        try:
            head = orjson.loads(self._take(end + 1))
        except orjson.JSONDecodeError as error:
            raise ProtocolError(f"header is not JSON: {error}") from None
        op = head.get("op") if type(head) is dict else None
        if type(op) is not str or head.keys() != fields_of.get(op):
            raise ProtocolError("header is not one that is due")
        self._head = head
        return self._head

    def _take(self, size: int) -> bytes:
        taken = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return taken


def _sources(op: str, slot: str, definition: Definition) -> bytes:
    return _header(
        {
            "op": op,
            "slot": slot,
            "before": definition.before,
            "body": definition.body,
            "beforeEach": definition.beforeEach,
            "afterEach": definition.afterEach,
        }
    )


def _header(head: dict[str, object]) -> bytes:
    return orjson.dumps(head, option=orjson.OPT_APPEND_NEWLINE)


def _check_end(head: dict[str, object], done: int, tally: Tally) -> None:
    """Check what only an end has, and note it."""
    run_s, cpu_s = _seconds(head["run_s"]), _seconds(head["cpu_s"])
    word = head["stop"]
    if done == tally.count:
        if word is not None:
            raise ProtocolError("a run stopped early with all jobs done")
    elif type(word) is not str or word not in _STOPS or done == 0:
        raise ProtocolError("a run ended early without a reason")
    else:
        tally.stop = Stop(reason=_STOPS[word], detail="stopped between two jobs")
    tally.run_s, tally.cpu_s = run_s, cpu_s


def _bad(raw: object, first: int, end: int) -> list[Bad]:
    if type(raw) is not list:
        raise ProtocolError("bad is no list")
    found: list[Bad] = []
    for entry in raw:
        if type(entry) is not list or len(entry) != 3:
            raise ProtocolError("an entry of bad has not three fields")
        index, exitcode, delay = entry
        if type(index) is not int or not first <= index < end:
            raise ProtocolError("an index of bad is not one of the jobs just done, in order")
        if type(exitcode) is not int or exitcode // 100 not in (1, 4, 5):
            raise ProtocolError("an exitcode of bad is none of 1xx, 4xx, 5xx")
        found.append(Bad(index, exitcode, None if delay is None else _seconds(delay)))
        first = index + 1
    return found


def _integer(head: dict[str, object], name: str, low: int, high: int) -> int:
    value = head[name]
    if type(value) is not int or not low <= value <= high:
        raise ProtocolError(f"{name} is no number from {low} to {high}")
    return value


def _seconds(value: object) -> float:
    # orjson lets no NaN or infinity pass; bool is refused because it is an int in disguise.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ProtocolError("a time is no number")
    if not 0 <= value <= _FOREVER_S:
        raise ProtocolError("a time is no number of seconds that can be")
    return float(value)
