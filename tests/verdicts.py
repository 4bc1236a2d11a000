"""What the tests of verdicts share: batches whose payloads are their job ids, and outcomes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

from handlers.names import JobType
from queue_service.batch import Batch, Fence, NewBatch, Options, Settlement
from queue_service.verdict import RetryPolicy, decide
from runners.base import Bad, Outcome, Span, Stop, StopReason

NOW = datetime(2026, 11, 18, 8, 0, tzinfo=UTC)
POLICY = RetryPolicy(base_s=5.0, cap_s=900.0, budget_s=1.0)
VERSION = 7
ONE_SPAN = (Span(post="p", first=0, count=10),)


def ids_of(spans: tuple[Span, ...]) -> list[str]:
    return [f"{span.post}-{span.first + n}" for span in spans for n in range(span.count)]


def batch_of(
    spans: tuple[Span, ...] = ONE_SPAN,
    *,
    attempt: int = 1,
    retries: int = 3,
    retry_delay_s: float | None = None,
    window_left_s: float = 3600.0,
    waited_s: float = 2.0,
    careful: bool = False,
) -> Batch:
    """A claimed batch; each line's payload is its job id, so that none can be mistaken."""
    ids = ids_of(spans)
    return Batch(
        fence=Fence(id=f"{ids[0]}.{attempt}", lock="s1.1", gen=4),
        jobtype=JobType("acme", "resize"),
        spans=spans,
        count=len(ids),
        data="".join(f"{job}\n" for job in ids).encode(),
        attempt=attempt,
        options=Options(
            priority=50,
            timeout_s=60.0,
            retries=retries,
            retry_delay_s=retry_delay_s,
            window_s=7200.0,
        ),
        create_dt=NOW - timedelta(seconds=7200.0 - window_left_s),
        claim_dt=NOW - timedelta(seconds=1),
        ready_dt=NOW - timedelta(seconds=1 + waited_s),
        careful=careful,
        recoveries=0,
    )


def outcome_of(
    done: int,
    *bad: Bad,
    stop: StopReason | None = None,
    blamed: int | None = None,
    run_s: float = 0.5,
) -> Outcome:
    reason = None if stop is None else Stop(reason=stop, detail=f"it was {stop}", blamed=blamed)
    return Outcome(
        done=done,
        ok=done - len(bad),
        bad=bad,
        out=b"".join(b'{"n": %d}\n' % n for n in range(done)),
        stop=reason,
        log=b"said something\n",
        run_s=run_s,
        cpu_s=0.25,
    )


def settled(batch: Batch, outcome: Outcome, seed: int = 1) -> Settlement:
    return decide(batch, outcome, version=VERSION, now=NOW, policy=POLICY, rng=Random(seed))


def jobs_of(data: bytes) -> list[str]:
    """The job ids that a block of such payloads holds."""
    return data.decode().splitlines()


def delay_of(batch: NewBatch) -> float:
    return (batch.dt - NOW).total_seconds()
