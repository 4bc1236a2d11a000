"""The architecture's invariants as ordinary tests: the rules of the rooms, and a module's form.

Each check is also shown a source that breaks it, so that none can pass by seeing nothing.
"""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from tests.rooms import (
    DAEMON,
    DISK,
    EXAMPLES,
    HANDLERS,
    QUEUE,
    RULES,
    RUNNERS,
    STATES,
    Rule,
    breaches,
)
from tests.sources import ROOT, Module, imports_of, modules, names_in, state_table

LINES_MAX = 400
VAGUE = {"utils", "util", "common", "helpers", "helper", "models", "misc"}
# What handlers/ may import: nothing in here reaches a file, a socket, a process or a clock.
PURE = {"__future__", "abc", "ast", "base64", "collections", "dataclasses", "enum", "functools"}
PURE |= {
    "handlers",
    "hashlib",
    "ipaddress",
    "itertools",
    "json",
    "math",
    "re",
    "string",
    "types",
    "typing",
}
ALL = modules(QUEUE, RUNNERS, HANDLERS)
OURS = [module for module in ALL if not module.path.startswith(EXAMPLES)]


def flaws(module: Module) -> list[str]:
    """What is wrong with a module's form, whatever it does."""
    found = []
    if module.docstring is None:
        found.append("has no docstring")
    if "__future__.annotations" not in [name for _, name in imports_of(module)]:
        found.append("does not import annotations from __future__")
    if PurePosixPath(module.path).stem in VAGUE:
        found.append("has a name that says nothing")
    if module.source.count("\n") > LINES_MAX:
        found.append(f"has more than {LINES_MAX} lines")
    return found


def impure(module: Module) -> list[str]:
    """What a module of handlers/ imports, or calls, that could do I/O."""
    imported = [name for _, name in imports_of(module) if name.partition(".")[0] not in PURE]
    called = {"builtins.open", "builtins.print", "builtins.input"}
    return imported + [name for _, name in names_in(module) if name in called]


def test_all_rooms_were_walked() -> None:
    paths = {module.path for module in ALL}
    assert {DAEMON, DISK, STATES, "runners/wire.py", "handlers/names.py"} <= paths


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.what)
def test_rule(rule: Rule) -> None:
    assert [breach for module in ALL for breach in breaches(rule, module)] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.what)
def test_every_rule_can_be_broken(rule: Rule) -> None:
    assert breaches(rule, Module(rule.where, rule.wrong))
    for home in rule.home:
        path = home if home.endswith(".py") else f"{home}some.py"
        assert breaches(rule, Module(path, rule.wrong)) == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import os\nos.environ['A']", "os.environ"),
        ("import os as o\no.environ.get('A')", "os.environ.get"),
        ("from os import environ as e\nprint(e)", "os.environ"),
        ("import os.path\nos.getenv('A')", "os.getenv"),
        ("def f():\n    from datetime import datetime as d\n    d.now()", "datetime.datetime.now"),
        ("from . import batch", "queue_service.batch"),
        ("from ..runners import pool", "runners.pool"),
        ("loop().subprocess_exec(p)", "*.subprocess_exec"),
        ("open('x')", "builtins.open"),
        ("if x.lock.startswith('__'): pass", "compare:lock"),
        ("'' != fence.lock", "compare:lock"),
    ],
)
def test_names_are_found_however_they_are_written(source: str, name: str) -> None:
    assert name in [found for _, found in names_in(Module("queue_service/some.py", source))]


def test_a_name_that_only_looks_alike_is_another() -> None:
    source = "environ = {}\nself.os.environ['A']\ndisk.fdatasync(3)\nclock.time.time()\n"
    found = {name for _, name in names_in(Module("queue_service/some.py", source))}
    assert not found & {"os.environ", "os.fdatasync", "time.time"}


@pytest.mark.parametrize("module", OURS, ids=lambda module: module.path)
def test_every_module_is_in_good_form(module: Module) -> None:
    assert flaws(module) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("runners/pool.py", "from __future__ import annotations\n"),
        ("runners/pool.py", '"""A pool."""\n'),
        ("runners/utils.py", '"""Many things."""\nfrom __future__ import annotations\n'),
        ("runners/pool.py", '"""A."""\nfrom __future__ import annotations\n' + "#\n" * 399),
    ],
)
def test_bad_form_is_found(path: str, source: str) -> None:
    assert len(flaws(Module(path, source))) == 1


def test_handlers_do_no_io() -> None:
    ours = [module for module in OURS if module.path.startswith(HANDLERS)]
    assert ours
    assert [found for module in ours for found in impure(module)] == []


@pytest.mark.parametrize(
    "source",
    ["import asyncio", "from os import path", "import pathlib, re", "open('x')", "import socket"],
)
def test_io_in_handlers_is_found(source: str) -> None:
    assert len(impure(Module("handlers/names.py", source))) == 1


def test_the_state_table_of_the_map_is_the_one_in_the_code() -> None:
    document = ROOT / "ARCHITECTURE.md"
    assert document.exists(), "ARCHITECTURE.md is missing"
    code = next(module.docstring for module in ALL if module.path == STATES)
    assert state_table(document.read_text()) == state_table(code or "")


def test_a_table_that_differs_in_one_cell_is_another() -> None:
    text = "words\n| lock | dt | state |\n|---|:--|---|\n| `` | due | READY |\n\n| an | other |\n"
    assert state_table(text) == [["lock", "dt", "state"], ["``", "due", "READY"]]
    assert state_table(text.replace("| due ", "|  due   ")) == state_table(text)
    assert state_table(text.replace("due", "past")) != state_table(text)
