"""The languages that run as warm child processes: a new one is one row here and one host file.

Says how a host is started, nothing more: `wire` has what it must understand, `sandbox` starts it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

_HOSTS = Path(__file__).resolve().parent / "hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """How to start a host: `interpreter *flags host`."""

    name: str
    interpreter: Path
    flags: tuple[str, ...]
    host: Path

    @property
    def argv(self) -> tuple[str, ...]:
        return (str(self.interpreter), *self.flags, str(self.host))


LANGUAGES: Mapping[str, Language] = MappingProxyType(
    {
        # Isolated, without site-packages, leaving no bytecode files behind.
        "python": Language(
            name="python",
            interpreter=Path(sys.executable),
            flags=("-I", "-S", "-B"),
            host=_HOSTS / "python_host.py",
        ),
    }
)
