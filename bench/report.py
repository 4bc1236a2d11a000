"""What was measured and how it is shown: a table for people, JSON lines for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("hearth-queue", "aiohttp", "uvloop", "pymongo", "orjson")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One ratio beside its target; `values` are the absolute numbers it was made of."""

    name: str
    ratio: float
    target: float
    at_least: bool
    values: Mapping[str, float]
    cpu_s: Mapping[str, float] | None = None
    note: str = ""

    @property
    def met(self) -> bool:
        return self.ratio >= self.target if self.at_least else self.ratio <= self.target


def facts() -> str:
    """The machine and the versions, for the top of the page."""
    versions = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), {platform.platform(terse=True)}, "
        f"Python {platform.python_version()}\n{versions}"
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def table(figures: Iterable[Figure]) -> str:
    """A Markdown table, ready to be pasted into a README."""
    rows: list[tuple[str, ...]] = [("figure", "measured", "ratio", "target", "")]
    for figure in figures:
        measured = ", ".join(f"{name} {_number(v)}" for name, v in figure.values.items())
        bound = f"{'>=' if figure.at_least else '<='} {figure.target:g}"
        met = "met" if figure.met else "missed"
        rows.append((_named(figure), measured, f"{figure.ratio:.2f}", bound, met))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    )


def cpu_table(figures: Iterable[Figure]) -> str:
    """Where the time went: CPU seconds of each process, for the figures that have them."""
    lines = []
    for figure in figures:
        if figure.cpu_s:
            spent = ", ".join(f"{who} {seconds:.2f}" for who, seconds in figure.cpu_s.items())
            lines.append(f"CPU seconds of {figure.name}: {spent}")
    return "\n".join(lines)


def _named(figure: Figure) -> str:
    return f"{figure.name} ({figure.note})" if figure.note else figure.name


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def json_line(figure: Figure) -> str:
    return json.dumps(
        {
            "figure": figure.name,
            "ratio": round(figure.ratio, 4),
            "target": figure.target,
            "at_least": figure.at_least,
            "met": figure.met,
            "values": {name: round(value, 4) for name, value in figure.values.items()},
            "cpu_s": {who: round(s, 3) for who, s in (figure.cpu_s or {}).items()},
            "note": figure.note,
        }
    )
