"""What becomes of a batch that was run: the retry rules, as one pure decision.

`decide` turns a runner's Outcome into the Settlement that is to be written. It knows no store, no
process and no clock: time and chance are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random

import orjson

from queue_service import block
from queue_service.batch import (
    BadLine,
    Batch,
    Finished,
    NewBatch,
    Settlement,
    code_of,
    cut_spans,
    pick_spans,
)
from runners.base import CONTEXT_DIED, ERROR, TIMED_OUT, Bad, Outcome, Span, Stop, StopReason

NO_HANDLER = 501
# A job that was to blame so often for the loss of its context, or of its daemon, is shelved: it
# has ended, as an error that can be found by this exitcode, and nothing runs it again by itself.
POISON = 508
STRIKES_MAX = 3
_PARTS_MAX = 64
_PAUSE_AFTER_CLOSED_S = 1.0
# The context was lost, or talked nonsense: with no job to blame, the next run must watch closely.
_LOST = (StopReason.TIMEOUT, StopReason.DIED, StopReason.PROTOCOL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Backoff with full jitter, and how much work one claim should be."""

    base_s: float
    cap_s: float
    budget_s: float

    def pause_s(self, attempt: int, rng: Random) -> float:
        ceiling = min(self.cap_s, self.base_s * 2.0 ** min(attempt - 1, 60))
        return rng.uniform(0, ceiling)


def decide(
    batch: Batch, outcome: Outcome, *, version: int, now: datetime, policy: RetryPolicy, rng: Random
) -> Settlement:
    """Which lines have ended, which are run again and when, and what is left over."""
    struck = _struck(outcome.stop)
    outcome = _with_blame(batch, outcome)
    if outcome.done == 0:
        return _untouched(batch, outcome.stop)
    pauses = _pauses(batch, outcome.bad, now, policy, rng)
    bad = tuple(BadLine(b.index, b.exitcode, b.index in pauses) for b in outcome.bad)
    whole = outcome.done == batch.count
    spans, rest = (batch.spans, ()) if whole else cut_spans(batch.spans, outcome.done)
    end = len(batch.data) if whole else block.offset_of(batch.data, outcome.done)
    finished = Finished(
        id=batch.fence.id,
        jobtype=batch.jobtype,
        spans=spans,
        count=outcome.done,
        data=batch.data if whole else batch.data[:end],
        attempt=batch.attempt,
        ok=outcome.ok,
        bad=bad,
        out=outcome.out,
        log=outcome.log,
        done_dt=now,
        create_dt=batch.create_dt,
        run_s=outcome.run_s,
        cpu_s=outcome.cpu_s,
        wait_s=max(0.0, (batch.claim_dt - batch.ready_dt).total_seconds()),
        handler_version=version,
        load_s=outcome.load_s,
        load_cpu_s=outcome.load_cpu_s,
    )
    successors = list(_attempts(batch, pauses, struck, now))
    if rest:
        successors += _leftover(batch, outcome, rest, batch.data[end:], now, policy)
    return Settlement(
        fence=batch.fence, finished=finished, narrowed=not whole, successors=tuple(successors)
    )


def never_handled(batch: Batch, *, now: datetime, policy: RetryPolicy, rng: Random) -> Settlement:
    """The end of a batch whose window closed before anybody uploaded a handler."""
    outcome = _all_bad(batch, NO_HANDLER, "no handler was uploaded within the retry window")
    return decide(batch, outcome, version=0, now=now, policy=policy, rng=rng)


def must_begin_alone(batch: Batch) -> bool:
    """Must the batch be stopped behind its first job, because daemons keep dying under it?

    What ends there is written at once. So if this run is lost as well, it was that job's.
    """
    return batch.recoveries >= STRIKES_MAX - 1


def shelve(batch: Batch, *, now: datetime, policy: RetryPolicy, rng: Random) -> Settlement | None:
    """The end of a job under which daemon after daemon died; None when the batch is to be run.

    A recovery counts as a strike against the job that was alone in flight: the only one of the
    batch, or its first one (`must_begin_alone`). The others go on as if nothing had been.
    """
    strikes = batch.recoveries + (batch.strikes if batch.count == 1 else 0)
    if not batch.recoveries or strikes < STRIKES_MAX:
        return None
    stop = Stop(reason=StopReason.DIED, detail="its daemon died", blamed=0)
    outcome = Outcome(done=0, ok=0, bad=(), out=b"", stop=stop)
    last = replace(batch, strikes=STRIKES_MAX - 1)
    return decide(last, outcome, version=0, now=now, policy=policy, rng=rng)


def _struck(stop: Stop | None) -> int | None:
    """The line that takes a strike."""
    return stop.blamed if stop is not None and stop.reason in _LOST else None


def _with_blame(batch: Batch, outcome: Outcome) -> Outcome:
    """Give the job that lost its context the result it could not give itself."""
    stop = outcome.stop
    if stop is None:
        return outcome
    if stop.reason is StopReason.UNLOADABLE:
        bad = _all_bad(batch, ERROR, stop.detail)
        return replace(bad, load_s=outcome.load_s, load_cpu_s=outcome.load_cpu_s)
    if stop.blamed is None:
        return outcome
    exitcode, detail = CONTEXT_DIED, stop.detail
    if stop.reason is StopReason.TIMEOUT:
        exitcode = TIMED_OUT
    if stop.reason in _LOST and batch.strikes + 1 >= STRIKES_MAX:
        exitcode, detail = POISON, f"poison: given up after {STRIKES_MAX} strikes; {stop.detail}"
    return replace(
        outcome,
        done=outcome.done + 1,
        bad=(*outcome.bad, Bad(outcome.done, exitcode)),
        out=outcome.out + _error_line(detail),
    )


def _all_bad(batch: Batch, exitcode: int, detail: str) -> Outcome:
    return Outcome(
        done=batch.count,
        ok=0,
        bad=tuple(Bad(index, exitcode) for index in range(batch.count)),
        out=_error_line(detail) * batch.count,
        stop=None,
    )


def _error_line(detail: str) -> bytes:
    return orjson.dumps({"error": detail}, option=orjson.OPT_APPEND_NEWLINE)


def _untouched(batch: Batch, stop: Stop | None) -> Settlement:
    """Nothing has ended: the batch goes back as it is, and no attempt is lost."""
    lost = stop is not None and stop.reason in _LOST
    pause = _PAUSE_AFTER_CLOSED_S if stop and stop.reason is StopReason.CLOSED else 0.0
    return Settlement(fence=batch.fence, finished=None, free_after_s=pause, careful=lost)


def _pauses(
    batch: Batch, bad: Iterable[Bad], now: datetime, policy: RetryPolicy, rng: Random
) -> dict[int, float]:
    """The lines that get another attempt, and after what pause.

    Lines without a pause of their own share one, so that they stay one batch.
    """
    if batch.attempt > batch.options.retries:
        return {}
    usual = batch.options.retry_delay_s
    if usual is None:
        usual = policy.pause_s(batch.attempt, rng)
    left = (batch.expire_dt - now).total_seconds()
    pauses = {}
    for line in bad:
        if line.exitcode == POISON or code_of(line.exitcode) not in ("retry", "error"):
            continue
        pause = usual if line.delay_s is None else line.delay_s
        if pause <= left:
            pauses[line.index] = pause
    return pauses


def _attempts(
    batch: Batch, pauses: dict[int, float], struck: int | None, now: datetime
) -> Iterable[NewBatch]:
    """One successor for all lines with an equal pause: same job ids, one attempt on.

    The line that took a strike gets one of its own: whatever it does next, it does alone.
    """
    groups: dict[tuple[float, bool], list[int]] = {}
    for index, pause in pauses.items():
        groups.setdefault((pause, index == struck), []).append(index)
    for (pause, is_struck), indices in groups.items():
        yield _successor(
            batch,
            pick_spans(batch.spans, indices),
            block.pick(batch.data, indices),
            dt=now + timedelta(seconds=pause),
            attempt=batch.attempt + 1,
            careful=is_struck or batch.strikes > 0,
            strikes=batch.strikes + is_struck,
        )


def _leftover(
    batch: Batch,
    outcome: Outcome,
    rest: tuple[Span, ...],
    data: bytes,
    now: datetime,
    policy: RetryPolicy,
) -> Iterable[NewBatch]:
    """The lines that were not begun: due at once, no attempt lost, cut so that others can help."""
    stop, left = outcome.stop, batch.count - outcome.done
    # Until the job at fault is found, the lines that may hold it are watched one by one.
    careful = stop is not None and stop.blamed is None and (stop.reason in _LOST or batch.careful)
    size = left
    if must_begin_alone(batch):
        # In small parts, so that what kills daemons is soon the first of one.
        size, careful = math.ceil(left / _PARTS_MAX), True
    elif stop and stop.reason is StopReason.BUDGET and outcome.run_s > 0:
        per_claim = int(policy.budget_s * outcome.done / outcome.run_s)
        size = max(per_claim, math.ceil(left / _PARTS_MAX), 1)
    for piece, count in block.cut(data, size, len(data)):
        spans, rest = cut_spans(rest, count)
        yield _successor(batch, spans, piece, dt=now, attempt=batch.attempt, careful=careful)


def _successor(
    batch: Batch,
    spans: tuple[Span, ...],
    data: bytes,
    *,
    dt: datetime,
    attempt: int,
    careful: bool = False,
    strikes: int = 0,
) -> NewBatch:
    return NewBatch(
        jobtype=batch.jobtype,
        spans=spans,
        count=sum(span.count for span in spans),
        data=data,
        dt=dt,
        attempt=attempt,
        options=batch.options,
        create_dt=batch.create_dt,
        due_dt=batch.due_dt,
        careful=careful,
        strikes=strikes,
    )
