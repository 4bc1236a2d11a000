"""Settings: one frozen, validated value out of defaults, a TOML file, `HEARTH_*` and flags.

Later sources win: defaults < file < environment < flags. Names end in their unit. This is the only
module that knows the environment's names; `load` is handed the environment as an argument, and
components are handed only what they need.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from runners.http.guard import exceptions_of

PREFIX = "HEARTH_"
CONFIG_FILE = "HEARTH_CONFIG"
MIB = 1 << 20

# Long enough for anybody, and short enough to be added to a date.
_TEN_YEARS_S = 10 * 366 * 86400

Seconds = Annotated[float, Field(gt=0, le=_TEN_YEARS_S)]
Count = Annotated[int, Field(ge=1)]


def _listed(value: object) -> object:
    """A list, which the environment can only give as one text with commas."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class InvalidSettings(ValueError):
    """Settings that cannot be used; the message names each setting and where it came from."""


class Settings(BaseModel):
    """Everything that can be set, with its default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Where
    data: Path = Field(Path("hearth-data"), description="directory of journals, keys, database")
    host: str = Field("127.0.0.1", description="address the API listens on")
    port: int = Field(8080, ge=0, le=65535, description="port of the API; 0 picks a free one")
    mongo: str = Field("", description="MongoDB URI; empty starts the embedded mongod")
    mongod: str = Field("", description="path of the mongod to embed; empty searches for one")
    mongo_cache_gb: float = Field(0.25, ge=0.25, description="cache of the embedded mongod")
    database: str = Field("hearth", pattern=r"^[A-Za-z0-9_-]{1,38}$", description="database name")
    admin_key: str = Field("", description="admin key; empty reads or creates DATA/admin.key")
    log_format: Literal["auto", "json", "human"] = Field("auto", description="log lines on stderr")

    # Intake
    body_max_bytes: Count = Field(16 * MIB, description="largest body of a POST")
    line_max_bytes: Count = Field(MIB, description="longest payload line")
    lines_max: Count = Field(100_000, description="most payload lines of a POST")
    wait_max_s: Seconds = Field(60, description="longest `wait` a request may ask for")

    # Journal
    segment_bytes: Count = Field(64 * MIB, description="size at which a journal file is rotated")
    journal_queue_bytes: Count = Field(64 * MIB, description="most bytes waiting for an fsync")
    journal_open_files: Count = Field(128, description="most journal files held open")

    # Ingest
    batch_jobs: Count = Field(1000, description="most jobs of a batch document")
    batch_bytes: Count = Field(MIB, description="most payload bytes of a batch document")
    ingest_bytes: Count = Field(4 * MIB, description="most bytes of one ingest transaction")

    # Leases
    lease_s: Seconds = Field(30, description="a claim lapses this long after its last renewal")
    renew_every_s: Seconds = Field(10, description="how often held claims are renewed")
    sweep_every_s: Seconds = Field(15, description="how often abandoned batches are looked for")
    sysid_lease_s: Seconds = Field(30, description="a daemon's sysid lapses after this")

    # Store
    store_timeout_s: Seconds = Field(8, description="longest wait for one answer of MongoDB")
    keep_done_s: float = Field(
        7 * 86400, ge=0, le=_TEN_YEARS_S, description="how long results stay; 0: a moment"
    )
    purge_every_s: Seconds = Field(60, description="how often old results are purged")

    # Running
    scheduler: str = Field("round-robin", description="scheduling policy")
    contexts: Count = Field(
        default_factory=lambda: os.cpu_count() or 2, description="most warm contexts"
    )
    context_idle_s: Seconds = Field(300, description="an unused context is closed after this")
    context_jobs_max: Count = Field(1_000_000, description="jobs after which one is replaced")
    context_memory_bytes: Count = Field(512 * MIB, description="memory limit of one context")
    budget_s: Seconds = Field(1.0, description="work per claim; what is left is shared out")
    job_timeout_s: Seconds = Field(60, description="default time limit of one job")
    job_timeout_max_s: Seconds = Field(900, description="largest time limit a job may ask for")
    poll_every_s: Seconds = Field(0.5, description="how often an idle daemon looks for work")
    drain_s: Seconds = Field(25, description="how long a stopping daemon lets batches finish")

    # Calling URLs
    http_allow_private: Texts = Field(
        (), description="host:port or networks that http handlers may call though not public"
    )
    http_signing_key: str = Field(
        "", description="signs calls of URLs; empty reads or creates DATA/http-signing.key"
    )
    http_connect_s: Seconds = Field(3, description="longest wait for a connection to a URL's host")
    http_requests: Count = Field(32, description="most requests to URLs at once")
    http_tenant_requests: Count = Field(16, description="… of one tenant")
    http_host_requests: Count = Field(8, description="… of one tenant to one host")
    http_answer_bytes: Count = Field(16 * MIB, description="largest answer; a job's share is 1 MiB")

    # Retries
    retries: int = Field(10, ge=0, description="attempts after the first")
    retry_base_s: Seconds = Field(5, description="backoff: upper end of the first pause")
    retry_cap_s: Seconds = Field(900, description="backoff: upper end of any pause")
    retry_window_s: Seconds = Field(6 * 3600, description="age at which retrying ends")

    @field_validator("http_allow_private")
    @classmethod
    def _can_be_read(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        exceptions_of(entries)
        return entries

    @model_validator(mode="after")
    def _relations(self) -> Self:
        for holds, why in (
            (self.renew_every_s * 3 <= self.lease_s, "renew_every_s * 3 <= lease_s"),
            (self.renew_every_s * 3 <= self.sysid_lease_s, "renew_every_s * 3 <= sysid_lease_s"),
            (self.store_timeout_s * 3 <= self.lease_s, "store_timeout_s * 3 <= lease_s"),
            (self.line_max_bytes <= self.body_max_bytes, "line_max_bytes <= body_max_bytes"),
            (self.body_max_bytes <= 256 * MIB, "body_max_bytes <= 256 MiB"),
            (self.line_max_bytes <= 16 * MIB, "line_max_bytes <= 16 MiB (a result's size)"),
            (self.batch_bytes <= 8 * MIB, "batch_bytes <= 8 MiB (half a document)"),
            (self.job_timeout_s <= self.job_timeout_max_s, "job_timeout_s <= job_timeout_max_s"),
            (self.retry_base_s <= self.retry_cap_s, "retry_base_s <= retry_cap_s"),
            (self.retry_cap_s < self.retry_window_s, "retry_cap_s < retry_window_s"),
        ):
            if not holds:
                raise ValueError(f"this must hold: {why}")
        return self


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings together with where each value that is no default came from."""

    settings: Settings
    origin: Mapping[str, str]


def load(flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None) -> Loaded:
    """Merge all sources and validate once, so that an error can name its source."""
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for source, found in (
        (f"file {file}", _from_file(file)),
        ("environment", _from_environ(environ)),
        ("flag", {name: value for name, value in flags.items() if value is not None}),
    ):
        values.update(found)
        origin.update(dict.fromkeys(found, source))
    try:
        return Loaded(settings=Settings(**values), origin=origin)
    except ValidationError as error:
        raise InvalidSettings(_explain(error, origin)) from None


def _from_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_bytes().decode())
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"cannot read {file}: {error}") from error


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    found = {
        key.removeprefix(PREFIX).lower(): value
        for key, value in environ.items()
        if key.startswith(PREFIX) and key != CONFIG_FILE
    }
    # A misspelt name would otherwise be a setting that silently does not hold.
    unknown = sorted(set(found) - set(Settings.model_fields))
    if unknown:
        raise InvalidSettings(f"{PREFIX}{unknown[0].upper()} (environment) is no setting")
    return found


def _explain(error: ValidationError, origin: Mapping[str, str]) -> str:
    lines = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"])
        place = f" (from {origin[name]})" if name in origin else ""
        lines.append(f"{name or 'settings'}{place}: {problem['msg']}")
    return "; ".join(lines)
