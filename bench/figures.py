"""The figures: what is done to the service for each, and which two numbers make the ratio.

A machine is not equally fast at all times, so the service and its yardstick take turns in short
rounds. Each function leaves the service idle and empty behind, and has checked that nothing was
lost. Starting and stopping processes is `bench.__main__`'s; the targets are the product's promises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import harmonic_mean

from bench import floor
from bench.children import child, module, run_bare, run_load
from bench.load import Load
from bench.report import Figure
from bench.service import Count, Service
from bench.watch import MB, Watch
from bench.workload import lines

_BULK = 1000
_CONNECTIONS = 8
_ROUNDS = 3
_BARE_JOBS = 200_000
_WARM_POSTS = 20
_GLANCE_S = 0.04


class NotMeasured(Exception):
    """The service was right, but the method cannot tell its speed here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything: the only difference between a full and a quick run."""

    drain_jobs: int
    hundreds_jobs: int
    intake_jobs: int
    single_posts: int
    wait_samples: int
    backlog_small: int
    backlog_large: int
    backlog_measured: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the figures are measured on. `tenant` makes a fresh one."""

    sizes: Sizes
    directory: Path
    mongo_uri: str
    tenant: Callable[[str], Service]
    watch: Watch

    def bare_rate(self) -> float:
        """Jobs per second of the bare loop, now. Nothing else may be running."""
        source, target = self.directory / "bare.in", self.directory / "bare.out"
        if not source.exists():
            source.write_bytes(lines(0, _BARE_JOBS))
        return _BARE_JOBS / run_bare(source, target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One load sent and drained: when it began, was acknowledged and had run; CPU by process."""

    started: float
    acknowledged: float
    drained: float
    cpu_s: dict[str, float]


def mean(values: Iterable[float]) -> float:
    """Of rates over equal amounts of work: the rate over all of it."""
    return harmonic_mean(list(values))


def drain(bench: Bench) -> list[Figure]:
    """1: from the first POST until everything has run."""
    return [_drained(bench, "1 drain, POSTs of 1000", bench.sizes.drain_jobs, _BULK, target=0.7)]


def drain_hundreds(bench: Bench) -> list[Figure]:
    """2: the same with smaller requests."""
    return [_drained(bench, "2 drain, POSTs of 100", bench.sizes.hundreds_jobs, 100, target=0.5)]


def intake(bench: Bench) -> list[Figure]:
    """3: durable and acknowledged. Without a handler nothing runs meanwhile; it does afterwards."""
    jobs, service = bench.sizes.intake_jobs, bench.tenant("intake")
    rates, bare = [], []
    for number in range(_ROUNDS):
        type_ = f"later{number}"
        bare.append(bench.bare_rate())
        load = service.load(type_, posts=jobs // _BULK, jobs=_BULK, connections=_CONNECTIONS)
        done = run_load(load, bench.directory)
        rates.append(jobs / (done.ended - done.started))
        service.until_queued(type_, jobs)
        service.put_handler(type_)
        service.until_ok(type_, jobs, jobs)
        service.check_results(done.batches, _BULK)
    return [
        Figure(
            name="3 acknowledged, POSTs of 1000",
            ratio=mean(rates) / mean(bare),
            target=3,
            at_least=True,
            values={"jobs": jobs, "acknowledged/s": mean(rates), "bare/s": mean(bare)},
            note="jobtype without handler: intake and ingest only",
        )
    ]


def singles(bench: Bench) -> list[Figure]:
    """4: one job per request, against a server that does nothing with it."""
    posts, connections = bench.sizes.single_posts, 32
    service = _warm(bench, "singles")
    load = service.load("run", posts=posts, jobs=1, connections=connections)
    rounds, plain = [], []
    for number in range(_ROUNDS):
        plain.append(_plain_rate(bench, posts, connections))
        rounds.append(_round(bench, service, load, number))
    rates = {
        "acknowledged": mean(posts / (r.acknowledged - r.started) for r in rounds),
        "drained": mean(posts / (r.drained - r.started) for r in rounds),
    }
    return [
        Figure(
            name=f"4 one-job POSTs, {word}",
            ratio=rate / mean(plain),
            target=0.5,
            at_least=True,
            values={"posts": posts, f"{word}/s": rate, "plain aiohttp/s": mean(plain)},
            cpu_s=rounds[-1].cpu_s if word == "acknowledged" else None,
        )
        for word, rate in rates.items()
    ]


def waited(bench: Bench) -> list[Figure]:
    """5: one job and its result, with nothing else going on."""
    samples, service = bench.sizes.wait_samples, _warm(bench, "waited")
    load = service.load("run", posts=samples, jobs=1, connections=1, wait=True)
    run_load(load, bench.directory)  # a warm-up of the same kind
    before = floor.measure(bench.directory, bench.mongo_uri, samples)
    done = run_load(load, bench.directory)
    least = before.mean(floor.measure(bench.directory, bench.mongo_uri, samples))
    total = _WARM_POSTS * _BULK + 2 * samples
    service.until_ok("run", total, total)
    service.check_results(done.batches, 1)
    parts = {name.removesuffix("_s"): value * 1000 for name, value in asdict(least).items()}
    return [
        Figure(
            name="5 one-job POST with wait, p50",
            ratio=done.median_s / least.total_s,
            target=3,
            at_least=False,
            values={"ms": done.median_s * 1000, "floor ms": least.total_s * 1000, **parts},
        )
    ]


def backlog(bench: Bench) -> list[Figure]:
    """6: whether a long queue is slower than a short one; 7: whether it takes memory."""
    sizes = bench.sizes
    few, many = [], []
    rss_before = rss_after = 0
    for number in range(_ROUNDS):
        few.append(_backlog_rate(bench, f"few{number}", sizes.backlog_small)[0])
        rate, rss_before, rss_after = _backlog_rate(bench, f"many{number}", sizes.backlog_large)
        many.append(rate)
    # Once more, because the store is fuller now than it was before the first long queue.
    few.append(_backlog_rate(bench, "few", sizes.backlog_small)[0])
    return [
        Figure(
            name=f"6 drain with {sizes.backlog_large:,} / {sizes.backlog_small:,} queued",
            ratio=mean(many) / mean(few),
            target=0.8,
            at_least=True,
            values={"jobs/s with many": mean(many), "with few": mean(few)},
            note=f"first {sizes.backlog_measured:,} jobs or so",
        ),
        Figure(
            name=f"7 daemon RSS after / before queueing {sizes.backlog_large:,}",
            ratio=rss_after / rss_before,
            target=1.25,
            at_least=False,
            values={"MB before": rss_before / MB, "MB after": rss_after / MB},
        ),
    ]


def memory(bench: Bench) -> list[Figure]:
    """7: the most memory the daemon's process had. Comes last, to have seen everything."""
    peak = bench.watch.rss_max_bytes / MB
    return [
        Figure(
            name="7 daemon RSS, highest / 300 MB",
            ratio=peak / 300,
            target=1,
            at_least=False,
            values={"MB": peak},
        )
    ]


def _drained(bench: Bench, name: str, jobs: int, per_post: int, *, target: float) -> Figure:
    service = _warm(bench, f"drain{per_post}")
    load = service.load("run", posts=jobs // per_post, jobs=per_post, connections=_CONNECTIONS)
    rounds, bare = [], []
    for number in range(_ROUNDS):
        bare.append(bench.bare_rate())
        rounds.append(_round(bench, service, load, number))
    rate = mean(jobs / (r.drained - r.started) for r in rounds)
    return Figure(
        name=name,
        ratio=rate / mean(bare),
        target=target,
        at_least=True,
        values={
            "jobs": jobs,
            "drained/s": rate,
            "acknowledged/s": mean(jobs / (r.acknowledged - r.started) for r in rounds),
            "bare/s": mean(bare),
        },
        cpu_s=rounds[-1].cpu_s,
    )


def _warm(bench: Bench, tenant: str) -> Service:
    """A tenant whose handler `run` has warm contexts."""
    service = bench.tenant(tenant)
    service.put_handler("run")
    load = service.load("run", posts=_WARM_POSTS, jobs=_BULK, connections=_CONNECTIONS)
    run_load(load, bench.directory)
    service.until_ok("run", _WARM_POSTS * _BULK, _WARM_POSTS * _BULK)
    return service


def _round(bench: Bench, service: Service, load: Load, number: int) -> Round:
    """Send a load to a warm service for the `number`-th time after 0, and see it drained."""
    total = _WARM_POSTS * _BULK + (number + 1) * load.posts * load.jobs
    before = bench.watch.cpu()
    done = run_load(load, bench.directory)
    end = service.until_ok("run", total, total)
    spent = bench.watch.cpu().since(before)
    service.check_results(done.batches, load.jobs)
    return Round(
        started=done.started,
        acknowledged=done.ended,
        drained=end.at,
        cpu_s={**asdict(spent), "client": done.cpu_s, "elapsed": end.at - done.started},
    )


def _plain_rate(bench: Bench, posts: int, connections: int) -> float:
    with child("plain", module("plain_server"), bench.directory) as (_, url):
        address = Service(url=url, tenant="plain", key="hearth_" + "x" * 40)
        load = address.load("run", posts=posts, jobs=1, connections=connections)
        done = run_load(load, bench.directory)
    return posts / (done.ended - done.started)


def _backlog_rate(bench: Bench, tenant: str, jobs: int) -> tuple[float, int, int]:
    """The rate over the first jobs of a queue of `jobs`; RSS before and after queueing them."""
    service = bench.tenant(tenant)
    load = service.load("run", posts=jobs // _BULK, jobs=_BULK, connections=_CONNECTIONS)
    rss_before = bench.watch.rss_bytes()
    done = run_load(load, bench.directory)
    service.until_queued("run", jobs)
    rss_after = bench.watch.rss_bytes()
    service.put_handler("run")
    rate = _first_rate(service, jobs, bench.sizes.backlog_measured)
    service.until_ok("run", jobs, jobs)
    service.check_results(done.batches, _BULK)
    return rate, rss_before, rss_after


def _first_rate(service: Service, jobs: int, measured: int) -> float:
    """Jobs per second over about the first `measured` of a queue.

    Asked for counts only three times: the scoreboard costs more the more is queued, and asking all
    the time would slow down the long queue more than the short one.
    """
    # From the first results on: starting the contexts is the same for any queue.
    first = service.until_ok("run", 1, jobs)
    time.sleep(_GLANCE_S)
    glance = service.count("run")
    time.sleep(max(0.0, (measured - glance.ok) / _rate(first, glance)))
    last = service.count("run")
    if last.ok == jobs:
        raise NotMeasured(f"a queue of {jobs} jobs is too short for this machine")
    return _rate(first, last)


def _rate(earlier: Count, later: Count) -> float:
    if later.ok == earlier.ok:
        raise NotMeasured(f"no job ended within {later.at - earlier.at:.2f} s")
    return (later.ok - earlier.ok) / (later.at - earlier.at)
