"""What can be set about running processes: one frozen value with its defaults and units.

Reads no environment and no file; whoever starts the runner builds it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """`max_contexts` is for all tenants together; about one per core suits busy handlers."""

    max_contexts: int = 8
    idle_s: float = 300.0
    max_age_s: float = 3600.0
    max_jobs_per_context: int = 1_000_000
    start_timeout_s: float = 10.0
    memory_max_bytes: int = 512 << 20
    file_max_bytes: int = 16 << 20
    open_files_max: int = 64

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0")
