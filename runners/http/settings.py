"""What can be set about calling URLs: one frozen value with its defaults and units.

Reads no environment and no file; whoever starts the runner builds it.
"""

from __future__ import annotations

from dataclasses import dataclass

from runners.http.guard import NO_EXCEPTIONS, Exceptions


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """`requests_max` is for all tenants together: others must be able to work beside them."""

    signing_key: str
    exceptions: Exceptions = NO_EXCEPTIONS
    denied_ports: frozenset[int] = frozenset()
    connect_s: float = 3.0
    idle_s: float = 60.0
    answer_max_bytes: int = 16 << 20
    answer_per_job_bytes: int = 1 << 20
    headers_max: int = 64
    requests_max: int = 32
    tenant_requests_max: int = 16
    host_requests_max: int = 8
    links_max: int = 256

    def __post_init__(self) -> None:
        if not self.signing_key:
            raise ValueError("signing_key must not be empty")
        for name in ("connect_s", "idle_s", "answer_max_bytes", "answer_per_job_bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0")
        for name in ("headers_max", "requests_max", "tenant_requests_max", "host_requests_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
