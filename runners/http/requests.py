"""What is sent: a call cut into requests, and the headers of each.

A request's body is payload lines exactly as they were posted. Headers name the jobs, so that a
receiver can tell what it has seen before. Sends nothing itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from runners.base import Call, Span
from runners.http.signing import signature

# Servers commonly refuse a header line of 8 KiB.
_JOBS_HEADER_MAX = 7000
_FORBIDDEN = frozenset("\r\n\0")


class UnsafeHeader(ValueError):
    """A value that would end its header early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Some neighbouring lines of a call, from line `first` on."""

    first: int
    count: int
    spans: tuple[Span, ...]
    body: bytes


def requests_of(call: Call) -> Iterator[Request]:
    """Usually one; more when its jobs could not be named in a header, or must be told apart."""
    if not call.careful and len(_jobs(call.spans)) <= _JOBS_HEADER_MAX:
        yield Request(first=0, count=call.count, spans=call.spans, body=call.data)
        return
    start = first = 0
    for spans in _groups(call):
        count = sum(span.count for span in spans)
        end = start
        for _ in range(count):
            end = call.data.index(b"\n", end) + 1
        yield Request(first=first, count=count, spans=spans, body=call.data[start:end])
        start, first = end, first + count


def _groups(call: Call) -> Iterator[tuple[Span, ...]]:
    if call.careful:
        for span in call.spans:
            for line in range(span.first, span.first + span.count):
                yield (Span(post=span.post, first=line, count=1),)
        return
    group: list[Span] = []
    size = 0
    for span in call.spans:
        length = len(_jobs((span,))) + 1
        if group and size + length > _JOBS_HEADER_MAX:
            yield tuple(group)
            group, size = [], 0
        group.append(span)
        size += length
    yield tuple(group)


def headers_of(request: Request, call: Call, secret: str, now_s: int) -> dict[str, str]:
    """Our own headers and no others; UnsafeHeader rather than one that could smuggle a line."""
    jobs = _jobs(request.spans)
    headers = {
        "Content-Type": "application/x-ndjson",
        "Accept": "application/x-ndjson, application/json, text/plain",
        "Accept-Encoding": "identity",
        "User-Agent": "hearth",
        "Idempotency-Key": _batch_key(request, jobs),
        "X-Hearth-Tenant": call.handler.tenant,
        "X-Hearth-Type": call.handler.name,
        "X-Hearth-Attempt": str(call.attempt),
        "X-Hearth-Jobs": jobs,
        "X-Hearth-Signature": signature(secret, request.body, now_s),
    }
    for name, value in headers.items():
        if not _FORBIDDEN.isdisjoint(value):
            raise UnsafeHeader(f"{name} contains a line break")
    return headers


def _jobs(spans: tuple[Span, ...]) -> str:
    return ",".join(f"{span.post}:{span.first}+{span.count}" for span in spans)


def _batch_key(request: Request, jobs: str) -> str:
    """Equal for equal sets of jobs, whatever the attempt; a single job's is its id."""
    first = f"{request.spans[0].post}-{request.spans[0].first}"
    if request.count == 1:
        return first
    return f"{first}+{request.count}.{hashlib.sha256(jobs.encode()).hexdigest()[:16]}"
