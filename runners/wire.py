"""The frames between the daemon and a child host: the contract for the next language.

A host is started with frames in on descriptor 3 and frames out on descriptor 4, standard input
empty, standard output and error going nowhere. It ends when descriptor 3 does. A frame is one line
of JSON, the header, followed by as many bytes as the header announces. Requests are answered one
at a time, in their order; the daemon may send the next one before the last is answered.

In (trusted):
    {"op": "load", "slot", "before", "body", "beforeEach", "afterEach", "secrets": {name: text}}
        Compile the four sources and run `before` once. `slot` names the handler from now on.
    {"op": "check", …the same, without secrets}
        Compile only; run nothing.
    {"op": "run", "slot", "bytes", "count", "spans": [[post, first, count], …], "attempt",
     "timeout_s", "budget_s", "careful", "flush_s", "result_max", "out_max", "log_max",
     "spawn_max", "spawn_bytes", "jobs_max": number or null}
        + `bytes` bytes: `count` payload lines, newline-ended, any bytes but the newline in them.
Out (believed only as far as this module checks):
    {"op": "ready", "run_s", "cpu_s"}  or  {"op": "refused", "message", "line"}
        The answer to load and check; the times are what compiling and `before` took.
    {"op": "part", "done", "bad": [[index, exitcode, delay or null], …], "out", "log", "jobs"}
        + `out` bytes: one result line of JSON for each job ended since the last frame
        + `log` bytes: what was printed meanwhile
        + `jobs` bytes: what those jobs have spawned, a line `INDEX TYPE|PAYLOAD` for each, in the
          order of INDEX, the line number of the job that spawned it.
        `done` counts the batch's jobs so far, `bad` lists the new ones that did not end well. Due
        after a job when `flush_s` have passed since the last frame, or after each job if `careful`.
    {"op": "end", …as part, "run_s", "cpu_s", "stop": null or "budget" or "output"}
        The answer to run. With a `stop` the jobs from `done` onwards have not been begun: at least
        one job was done and `budget_s` were over or `jobs_max` were done ("budget"), or another
        result might not fit in `out_max` or more than `spawn_bytes` were spawned ("output").
A job spawns by printing a line `J: TYPE|PAYLOAD` or `#J: TYPE|PAYLOAD`, further blanks after the
colon left away, or by `context.enqueue`. Such lines are not logged; those of one job over
`spawn_max` in number or `spawn_bytes` in size are dropped, and the log says so. What is printed
outside of a job is log, whatever it looks like.
Jobs are known by their line number in the batch alone, so no frame can speak of another batch.

This module turns bytes into values and back. It moves no bytes and knows no process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from handlers.definition import Definition, Handler
from runners.base import Bad, Call, Outcome, SourceError, Spawned, Stop, StopReason
from runners.distrust import ProtocolError as ProtocolError
from runners.distrust import read_bad, read_integer, read_seconds, read_spawned

FLUSH_S: Final = 0.02
RESULT_MAX: Final = 16 << 20
OUT_MAX: Final = 2 * RESULT_MAX
LOG_MAX: Final = 64 << 10
SPAWN_MAX: Final = 1000
SPAWN_BYTES: Final = 4 << 20
_LOG_NOTE_MAX: Final = 200  # a host may add notes about what it dropped
# A batch stops when it has spawned SPAWN_BYTES, and its last job may have spawned as much again.
_JOBS_MAX: Final = 2 * SPAWN_BYTES + (1 << 20)
_HEADER_MAX: Final = 8 << 10
_HEADER_PER_JOB: Final = 64  # room for a `bad` entry
_FOREVER_S: Final = 1e9

_ANSWERS: Final = {
    "ready": frozenset({"op", "run_s", "cpu_s"}),
    "refused": frozenset({"op", "message", "line"}),
}
_REPORTS: Final = {
    "part": frozenset({"op", "done", "bad", "out", "log", "jobs"}),
    "end": frozenset({"op", "done", "bad", "out", "log", "jobs", "run_s", "cpu_s", "stop"}),
}
_STOPS: Final = {"budget": StopReason.BUDGET, "output": StopReason.OUTPUT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a host says to load and check, and what it cost."""

    error: SourceError | None
    run_s: float = 0.0
    cpu_s: float = 0.0


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
    spawned: list[Spawned] = field(default_factory=list)
    out_room: int = OUT_MAX
    log_room: int = LOG_MAX + _LOG_NOTE_MAX
    jobs_room: int = _JOBS_MAX
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
            spawned=tuple(self.spawned),
        )


def slot_of(handler: Handler, secrets: Mapping[str, str] | None = None) -> str:
    """The name of a handler within a context; contexts never see a tenant's name.

    A secret that has changed makes it another one, so that the handler is loaded anew.
    """
    slot = f"{handler.name}@{handler.version}"
    if secrets:
        text = orjson.dumps(dict(secrets), option=orjson.OPT_SORT_KEYS)
        slot += f"+{hashlib.sha256(text).hexdigest()[:16]}"
    return slot


def encode_load(handler: Handler, secrets: Mapping[str, str] | None = None) -> bytes:
    head = _sources("load", slot_of(handler, secrets), handler.definition)
    return _header(head | {"secrets": dict(secrets or {})})


def encode_check(definition: Definition) -> bytes:
    return _header(_sources("check", "", definition))


def encode_run(call: Call) -> bytes:
    """The header of a run; the call's `data` follows it."""
    return _header(
        {
            "op": "run",
            "slot": slot_of(call.handler, call.secrets),
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
            "spawn_max": SPAWN_MAX,
            "spawn_bytes": SPAWN_BYTES,
            "jobs_max": call.jobs_max,
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
            run_s, cpu_s = read_seconds(head["run_s"]), read_seconds(head["cpu_s"])
            return Answer(error=None, run_s=run_s, cpu_s=cpu_s)
        message = head["message"]
        if type(message) is not str or len(message) > _HEADER_MAX:
            raise ProtocolError("message is no short text")
        line = read_integer(head, "line", 0, 10**7)
        return Answer(error=SourceError(message=message, line=line))

    def report(self, tally: Tally) -> bool:
        """Add the next part or end of a run to its tally; False while it is incomplete."""
        left = tally.count - tally.done
        head = self._take_head(_REPORTS, _HEADER_MAX + _HEADER_PER_JOB * left)
        if head is None:
            return False
        is_end = head["op"] == "end"
        # A part without progress is refused, or it could hold off the watch on the job for ever.
        done = read_integer(head, "done", tally.done + (not is_end), tally.count)
        out_size = read_integer(head, "out", 0, tally.out_room)
        log_size = read_integer(head, "log", 0, tally.log_room)
        jobs_size = read_integer(head, "jobs", 0, tally.jobs_room)
        if len(self._buffer) < out_size + log_size + jobs_size:
            return False
        bad = read_bad(head["bad"], tally.done, done)
        if is_end:
            _check_end(head, done, tally)
        self._head = None
        out, log = self._take(out_size), self._take(log_size)
        if out.count(b"\n") != done - tally.done or not (out.endswith(b"\n") or out == b""):
            raise ProtocolError("results are not one line for each job")
        if jobs_size:
            tally.spawned += read_spawned(self._take(jobs_size), tally.done, done)
        tally.done = done
        tally.bad += bad
        tally.blocks.append(out)
        tally.logs.append(log)
        tally.out_room -= out_size
        tally.log_room -= log_size
        tally.jobs_room -= jobs_size
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


def _sources(op: str, slot: str, definition: Definition) -> dict[str, object]:
    return {
        "op": op,
        "slot": slot,
        "before": definition.before,
        "body": definition.body,
        "beforeEach": definition.beforeEach,
        "afterEach": definition.afterEach,
    }


def _header(head: dict[str, object]) -> bytes:
    return orjson.dumps(head, option=orjson.OPT_APPEND_NEWLINE)


def _check_end(head: dict[str, object], done: int, tally: Tally) -> None:
    """Check what only an end has, and note it."""
    run_s, cpu_s = read_seconds(head["run_s"]), read_seconds(head["cpu_s"])
    word = head["stop"]
    if done == tally.count:
        if word is not None:
            raise ProtocolError("a run stopped early with all jobs done")
    elif type(word) is not str or word not in _STOPS or done == 0:
        raise ProtocolError("a run ended early without a reason")
    else:
        tally.stop = Stop(reason=_STOPS[word], detail="stopped between two jobs")
    tally.run_s, tally.cpu_s = run_s, cpu_s
