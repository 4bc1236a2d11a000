"""The runner's nouns and its protocol: a batch of payload lines in, one outcome for it out.

Nothing here starts a process. The unit is the batch: a `Call` carries all payload lines as one
block of bytes and an `Outcome` carries all result lines as one block, so that the normal path
does no work per job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from handlers.definition import Definition, Handler

OK = 200
FAILED = 400
RETRY = 100
ERROR = 500
CONTEXT_DIED = 502
TIMED_OUT = 504


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """`count` neighbouring lines of a batch: jobs `{post}-{first}` and onwards."""

    post: str
    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One batch to run.

    `data` holds exactly `count` lines, each ended by a newline. `spans` names them, in order.
    `budget_s` asks the context to stop between two jobs once that much time has passed, so that
    slow work can be shared out; `job_timeout_s` is how long one job may take. `careful` makes
    the context report after every job, so that the job at fault can be told exactly. `jobs_max`
    asks it to stop after so many jobs, as if the budget were over. `secrets` are what the handler
    has declared and may read.
    """

    handler: Handler
    data: bytes
    count: int
    spans: tuple[Span, ...]
    attempt: int
    job_timeout_s: float
    budget_s: float
    careful: bool = False
    jobs_max: int | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Bad:
    """A job that did not end `ok`: its line in the batch and what it answered.

    `exitcode` is 1xx (retry), 4xx (failed) or 5xx (error); `delay_s` is the pause a handler asked
    for with Retry, or None.
    """

    index: int
    exitcode: int
    delay_s: float | None = None


@dataclass(frozen=True, slots=True)
class Spawned:
    """A job that a job asked for: the line of the one that did, and type and payload as it said.

    Nothing of it has been checked.
    """

    index: int
    type: str
    payload: bytes


class StopReason(StrEnum):
    """Why a call ended before its last job."""

    BUDGET = "budget"  # the context stopped between two jobs, as it was asked to
    OUTPUT = "output"  # the result block reached its limit; stopped between two jobs
    TIMEOUT = "timeout"  # a job overran its time; the context was killed
    DIED = "died"  # the context exited or was killed
    PROTOCOL = "protocol"  # the context answered something that is no valid frame
    UNLOADABLE = "unloadable"  # the handler could not be loaded into a context
    CLOSED = "closed"  # the runner is shutting down or could not start a context


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """How a call ended early.

    `blamed` is the line that was being run when the context was lost. None means that no single
    job is to blame: either the context stopped of its own accord, or the one at fault is somewhere
    behind `done` and running the rest with `careful` will tell.
    """

    reason: StopReason
    detail: str
    blamed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a Call.

    Lines `0 .. done-1` have ended: `ok` of them well, the others as listed in `bad` (indices
    strictly increasing, so ok + len(bad) == done). `out` holds `done` lines of JSON, newline-ended:
    the handler's value, or `{"error": …}` for a bad one. `stop` is None exactly when
    done == call.count. `log` is what the handler printed, bounded. `spawned` are jobs that the
    jobs in `0 .. done-1` asked for, in their order. `run_s` and `cpu_s` are what the jobs took,
    `load_s` and `load_cpu_s` what starting and loading took if this call had to wait for it.
    """

    done: int
    ok: int
    bad: tuple[Bad, ...]
    out: bytes
    stop: Stop | None
    log: bytes = b""
    run_s: float = 0.0
    cpu_s: float = 0.0
    spawned: tuple[Spawned, ...] = ()
    load_s: float = 0.0
    load_cpu_s: float = 0.0


def nothing_done(reason: StopReason, detail: str) -> Outcome:
    """The outcome of a call whose first job was not begun."""
    stop = Stop(reason=reason, detail=detail)
    return Outcome(done=0, ok=0, bad=(), out=b"", stop=stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceError:
    """Why a handler's source cannot be loaded; `line` is 1-based, 0 where unknown."""

    message: str
    line: int


class Runner(Protocol):
    """Executes batches of one or more languages."""

    @property
    def langs(self) -> Collection[str]:
        """The languages this runner takes."""

    async def run(self, call: Call) -> Outcome:
        """Run the batch and answer exactly one Outcome.

        Never raises for the job's fault, whatever the code does; a context that misbehaved is
        replaced before the next call. Cancelling kills the context.
        """

    async def check(self, definition: Definition) -> SourceError | None:
        """Say why `definition` would not load, without running any of it; None if it would."""

    def room(self, handler: Handler) -> int:
        """How many more calls of this handler could begin at once, without waiting."""

    def warm(self) -> Collection[tuple[str, str, str]]:
        """The `Handler.key`s that an idle warm context exists for: hints for a scheduler."""

    async def close(self) -> None:
        """End every context. Calls still running answer with StopReason.CLOSED."""
