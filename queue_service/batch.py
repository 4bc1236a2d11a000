"""The batch, its states and the legal moves between them.

| lock            | dt                   | state     | who moves it on                             |
|-----------------|----------------------|-----------|---------------------------------------------|
| `""`            | future               | DEFERRED  | time                                        |
| `""`            | due                  | READY     | claim                                       |
| sysid (+ `gen`) | future = lease end   | RUNNING   | renew / settle carrying that lock and gen   |
| sysid           | past                 | ABANDONED | any daemon's sweep, guarded by the old lock |
| `__done`        | finish + 1000 years  | DONE      | purge, by `done_dt`                         |
| other `__words` | beyond the year 3000 | PARKED    | whoever parked it; never swept              |

`dt` and `lock` are the only truth about who may run what, and their meaning stands here and in no
other module (the store's filters are built out of the constants below). Lease arithmetic uses the
database's clock. This module does no I/O.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from handlers.names import JobType
from runners.base import Span

FREE = ""
DONE = "__done"
WORD_PREFIX = "__"
# A sysid begins with a letter, and every letter sorts behind "_": "held by a daemon" is a range
# of one indexed field.
FIRST_SYSID = "a"
DONE_YEARS = 1000
# The claim number of a batch that was claimed once; a batch that waits for its first claim has 0.
FIRST_GEN = 1
# Nothing that waits or runs has a dt behind this; everything done or parked has.
LIVE_BEFORE = datetime(2900, 1, 1, tzinfo=UTC)


class State(StrEnum):
    DEFERRED = "deferred"
    READY = "ready"
    RUNNING = "running"
    ABANDONED = "abandoned"
    DONE = "done"
    PARKED = "parked"


def state_of(lock: str, dt: datetime, now: datetime) -> State:
    """Read a state off the two fields that define it."""
    if lock == FREE:
        return State.DEFERRED if dt > now else State.READY
    if lock == DONE:
        return State.DONE
    if lock.startswith(WORD_PREFIX):
        return State.PARKED
    return State.RUNNING if dt > now else State.ABANDONED


def archived_dt(done_dt: datetime) -> datetime:
    """The dt of a batch that is done: a thousand years on, the 29th of February included."""
    try:
        return done_dt.replace(year=done_dt.year + DONE_YEARS)
    except ValueError:
        return (done_dt + timedelta(days=1)).replace(year=done_dt.year + DONE_YEARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a submitter may ask for; equal for all jobs of a batch.

    `timeout_s` bounds one job's run, `retries` the attempts after the first, `retry_delay_s` fixes
    the pause between attempts (None: backoff with full jitter), `window_s` ends all retrying that
    long after the job was created or, if later, first due.
    """

    priority: int
    timeout_s: float
    retries: int
    retry_delay_s: float | None
    window_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """A batch to be inserted: freshly ingested, or what is left of one that was taken apart.

    `due_dt` is when its first attempt was asked for, if that was not at once. `strikes` is how
    often its job was to blame for a lost context; more than 0 only for a job that is alone.
    """

    jobtype: JobType
    spans: tuple[Span, ...]
    count: int
    data: bytes
    dt: datetime
    attempt: int
    options: Options
    create_dt: datetime
    due_dt: datetime | None = None
    careful: bool = False
    strikes: int = 0

    @property
    def expire_dt(self) -> datetime:
        return _expire_dt(self.create_dt, self.due_dt, self.options)

    @property
    def id(self) -> str:
        """Unique: a job is in one batch per attempt, and only one of them can begin with it."""
        first = self.spans[0]
        return f"{first.post}-{first.first}.{self.attempt}"

    def is_due(self, now: datetime) -> bool:
        return self.dt <= now


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The right to write to a claimed batch; outdated as soon as anyone else has claimed it."""

    id: str
    lock: str
    gen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A claimed batch, held by one daemon under its fence until settled or its lease ends."""

    fence: Fence
    jobtype: JobType
    spans: tuple[Span, ...]
    count: int
    data: bytes
    attempt: int
    options: Options
    create_dt: datetime
    claim_dt: datetime
    ready_dt: datetime
    careful: bool
    recoveries: int
    due_dt: datetime | None = None
    strikes: int = 0

    @property
    def expire_dt(self) -> datetime:
        """When retrying ends."""
        return _expire_dt(self.create_dt, self.due_dt, self.options)


def _expire_dt(create_dt: datetime, due_dt: datetime | None, options: Options) -> datetime:
    """A job that was deferred has its whole window from then on."""
    return max(create_dt, due_dt or create_dt) + timedelta(seconds=options.window_s)


def taken(new: NewBatch, lock: str, now: datetime) -> Batch:
    """A batch that the daemon which accepted it runs before it is stored: claimed at birth."""
    return Batch(
        fence=Fence(id=new.id, lock=lock, gen=FIRST_GEN),
        jobtype=new.jobtype,
        spans=new.spans,
        count=new.count,
        data=new.data,
        attempt=new.attempt,
        options=new.options,
        create_dt=new.create_dt,
        claim_dt=now,
        ready_dt=new.dt,
        careful=new.careful,
        recoveries=0,
        due_dt=new.due_dt,
        strikes=new.strikes,
    )


@dataclass(frozen=True, slots=True)
class BadLine:
    """A job of a done batch that did not end ok. `again`: a later attempt of it was queued."""

    index: int
    exitcode: int
    again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A batch that has ended: what the archive keeps of it and what results are read from.

    `run_s` and `cpu_s` are what its jobs took, `beforeEach` and `afterEach` included. `load_s` and
    `load_cpu_s` are what starting its context and `before` took: charged whole to the first batch
    with results that the context served, so that sums over batches are exact. A job's share is a
    jobtype's sum by the number of its jobs.
    """

    id: str
    jobtype: JobType
    spans: tuple[Span, ...]
    count: int
    data: bytes
    attempt: int
    ok: int
    bad: tuple[BadLine, ...]
    out: bytes
    log: bytes
    done_dt: datetime
    create_dt: datetime
    run_s: float
    cpu_s: float
    wait_s: float
    handler_version: int
    load_s: float = 0.0
    load_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """All that is written about one claimed batch, all or nothing, under its fence.

    `finished` ends the batch; `narrowed` says that it was cut down to the lines that have a result.
    None instead frees the batch as it is, `free_after_s` from now. `successors` carry the lines
    that are to be run (again). `unstored` is the batch itself where it was run straight from the
    journal and is not in the store yet: then it is inserted in the state it has reached.
    """

    fence: Fence
    finished: Finished | None
    unstored: NewBatch | None = None
    narrowed: bool = False
    successors: tuple[NewBatch, ...] = ()
    free_after_s: float = 0.0
    careful: bool = False


def code_of(exitcode: int) -> str:
    """The four ways a job can stop: 1xx retry, 2xx ok, 4xx failed, all else error."""
    return {1: "retry", 2: "ok", 4: "failed"}.get(exitcode // 100, "error")


def codes_of(done: Finished) -> Counter[str]:
    """How many jobs of a batch ended with which code."""
    codes = Counter(code_of(line.exitcode) for line in done.bad)
    codes["ok"] = done.ok
    return codes


def meters_of(done: Finished) -> dict[str, int]:
    """What a batch has used, in whole microseconds, because only integers add up exactly."""
    return {
        "run_us": round(done.run_s * 1e6),
        "cpu_us": round((done.cpu_s + done.load_cpu_s) * 1e6),
        "load_us": round(done.load_s * 1e6),
    }


def cut_spans(spans: tuple[Span, ...], lines: int) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Divide spans behind their first `lines` lines."""
    head: list[Span] = []
    for number, span in enumerate(spans):
        if lines >= span.count:
            head.append(span)
            lines -= span.count
            continue
        rest = list(spans[number:])
        if lines:
            head.append(Span(post=span.post, first=span.first, count=lines))
            rest[0] = Span(post=span.post, first=span.first + lines, count=span.count - lines)
        return tuple(head), tuple(rest)
    return tuple(head), ()


def pick_spans(spans: tuple[Span, ...], indices: list[int]) -> tuple[Span, ...]:
    """The spans of the lines with these (increasing) numbers, neighbours joined."""
    picked: list[Span] = []
    base = number = 0
    for index in indices:
        while index >= base + spans[number].count:
            base += spans[number].count
            number += 1
        span = spans[number]
        line = span.first + index - base
        last = picked[-1] if picked else None
        if last and last.post == span.post and last.first + last.count == line:
            picked[-1] = Span(post=last.post, first=last.first, count=last.count + 1)
        else:
            picked.append(Span(post=span.post, first=line, count=1))
    return tuple(picked)
