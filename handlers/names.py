"""The names tenants may choose, checked in one place.

A name ends up in file paths, journal headers, store filters and URLs, so it is refused here once
instead of being escaped everywhere. This module does not look anything up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TENANT = re.compile(r"[a-z][a-z0-9]{0,31}")
_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,63}")
_VERSION = re.compile(r"[1-9][0-9]{0,8}")
_RESERVED_TENANTS = frozenset(
    {"v1", "ui", "docs", "livez", "readyz", "startupz", "metrics", "version", "admin", "jobs"}
)
_RESERVED_PREFIXES = ("queue.", "__")


class InvalidName(ValueError):
    """A tenant or jobtype name that cannot be used; the message says why."""


def check_tenant(name: str) -> str:
    """Return `name` when it may name a tenant, else raise InvalidName."""
    # fullmatch, because `$` would accept a trailing newline.
    if not _TENANT.fullmatch(name):
        raise InvalidName(
            f"tenant {name[:80]!r} must be 1-32 lower-case letters and digits, a letter first"
        )
    if name in _RESERVED_TENANTS:
        raise InvalidName(f"tenant {name!r} is reserved")
    return name


def check_function(name: str) -> str:
    """Return `name` when it may name a handler (a jobtype without version), else raise."""
    if not _FUNCTION.fullmatch(name) or ".." in name:
        raise InvalidName(
            f"jobtype {name[:80]!r} must be 1-64 letters, digits, '_' and single '.', "
            "not starting with a digit or '.'"
        )
    if name.startswith(_RESERVED_PREFIXES):
        raise InvalidName(f"jobtype {name!r} starts with a reserved prefix")
    return name


def split_version(type_: str) -> tuple[str, int | None]:
    """Take `resize@3` apart into its function and pinned version (None: the newest)."""
    name, at, version = type_.partition("@")
    return name, int(version) if at else None


def check_type(type_: str) -> str:
    """Return `type_` when it may be queued: a function name, or one with a pinned version."""
    name, at, version = type_.partition("@")
    check_function(name)
    if at and not _VERSION.fullmatch(version):
        raise InvalidName(f"jobtype {type_[:80]!r} pins a version that is no positive number")
    return type_


@dataclass(frozen=True, slots=True, order=True)
class JobType:
    """Tenant and type together: the key of everything that is scheduled.

    Two fields and never one joined string, because a separator that either part may contain
    would let two tenants' types collide. `str()` is for people only.
    """

    tenant: str
    type: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.type}"
