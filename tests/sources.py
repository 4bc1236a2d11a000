"""Sources as data: what a module of ours imports, names, compares and writes down as text.

For the architecture's tests. Names are followed through imports, so that `from os import environ
as e` is found like `os.environ`; nothing is imported or run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Module:
    """A source file, known by its path from the root."""

    path: str
    source: str

    @property
    def docstring(self) -> str | None:
        return ast.get_docstring(parsed(self))


@cache
def modules(*folders: str) -> tuple[Module, ...]:
    """Every Python file below these folders of the root."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return tuple(
        Module(path.relative_to(ROOT).as_posix(), path.read_text()) for path in sorted(found)
    )


@cache
def parsed(module: Module) -> ast.Module:
    return ast.parse(module.source, module.path)


def imports_of(module: Module) -> Iterator[tuple[int, str]]:
    """What a module imports, at its top or inside a function, with the line."""
    for node in ast.walk(parsed(module)):
        for _, full in _imported(node, module.path):
            yield node.lineno, full  # type: ignore[attr-defined]


@cache
def names_in(module: Module) -> tuple[tuple[int, str], ...]:
    """Every name a module uses, with its line, in full: `os.environ`, `queue_service.batch`.

    `builtins.x` is any name that was not imported and `*.x` an attribute of anything else;
    `text:`, `key:` and `compare:` are a string, a key of a dict literal, a side of a comparison.
    """
    found = list(imports_of(module))
    nodes = list(ast.walk(parsed(module)))
    known: dict[str, str] = {}
    for node in nodes:
        known.update(_imported(node, module.path))
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute):
            found.append((node.lineno, _full_name(node, known)))
        found += [(getattr(node, "lineno", 0), name) for name in _notable(node)]
    return tuple(found)


def _imported(node: ast.AST, path: str) -> Iterator[tuple[str, str]]:
    """What an import statement binds: the local name, and the full one behind it."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            yield alias.asname or top, alias.name if alias.asname else top
            if alias.name != top:
                yield alias.name, alias.name
    elif isinstance(node, ast.ImportFrom):
        package = PurePosixPath(path).parts[: -node.level] if node.level else ()
        base = ".".join((*package, node.module) if node.module else package)
        for alias in node.names:
            yield alias.asname or alias.name, f"{base}.{alias.name}"


def _full_name(node: ast.Name | ast.Attribute, known: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return known.get(node.id, f"builtins.{node.id}")
    if isinstance(node.value, ast.Name | ast.Attribute):
        base = _full_name(node.value, known)
        if not base.startswith(("builtins.", "*.")):
            return f"{base}.{node.attr}"
    return f"*.{node.attr}"


def _notable(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield f"text:{node.value}"
    elif isinstance(node, ast.Dict):
        keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        yield from (f"key:{key}" for key in keys if isinstance(key, str))
    elif isinstance(node, ast.Compare):
        yield from (f"compare:{_last_name(side)}" for side in (node.left, *node.comparators))
    elif isinstance(node, ast.Attribute) and node.attr in ("startswith", "endswith"):
        yield f"compare:{_last_name(node.value)}"


def _last_name(node: ast.expr) -> str:
    """What `lock`, `fence.lock` and `row["lock"]` have in common."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return str(getattr(node, "attr", getattr(node, "id", "")))


def state_table(text: str) -> list[list[str]]:
    """The cells of the first table of lock and dt in a text, without its ruler and padding."""
    lines = [line.strip() for line in text.splitlines()]
    start = next(n for n, line in enumerate(lines) if re.match(r"\|\s*lock\s*\|\s*dt\s*\|", line))
    end = next((n for n in range(start, len(lines)) if not lines[n].startswith("|")), len(lines))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:end]]
    return [row for row in rows if not all(set(cell) <= set(":-") for cell in row)]
