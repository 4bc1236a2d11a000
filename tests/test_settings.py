"""Settings: which source wins, what is refused and in which words, what holds for all of them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from queue_service.settings import MIB, InvalidSettings, Settings, load
from tests.sources import ROOT

DEFAULTS = load({}, {}).settings
UNITS = ("_s", "_bytes", "_gb")
COUNTS = {"port", "contexts", "retries", "lines_max", "batch_jobs"}
COUNTS |= {"context_jobs_max", "journal_open_files"}
COUNTS |= {"http_requests", "http_tenant_requests", "http_host_requests"}

# Each relation: values with which it just holds, and with which it is just broken.
RELATIONS: list[tuple[str, dict[str, float], dict[str, float]]] = [
    (
        "renew_every_s * 3 <= lease_s",
        {"renew_every_s": 10, "lease_s": 30},
        {"renew_every_s": 10.1, "lease_s": 30, "sysid_lease_s": 60},
    ),
    (
        "renew_every_s * 3 <= sysid_lease_s",
        {"renew_every_s": 5, "sysid_lease_s": 15},
        {"renew_every_s": 5, "sysid_lease_s": 14.9},
    ),
    (
        "store_timeout_s * 3 <= lease_s",
        {"store_timeout_s": 10, "lease_s": 30},
        {"store_timeout_s": 10.1, "lease_s": 30},
    ),
    (
        "line_max_bytes <= body_max_bytes",
        {"line_max_bytes": 1000, "body_max_bytes": 1000},
        {"line_max_bytes": 1001, "body_max_bytes": 1000},
    ),
    ("body_max_bytes <= 256 MiB", {"body_max_bytes": 256 * MIB}, {"body_max_bytes": 256 * MIB + 1}),
    (
        "line_max_bytes <= 16 MiB (a result's size)",
        {"line_max_bytes": 16 * MIB, "body_max_bytes": 32 * MIB},
        {"line_max_bytes": 16 * MIB + 1, "body_max_bytes": 32 * MIB},
    ),
    (
        "batch_bytes <= 8 MiB (half a document)",
        {"batch_bytes": 8 * MIB},
        {"batch_bytes": 8 * MIB + 1},
    ),
    (
        "job_timeout_s <= job_timeout_max_s",
        {"job_timeout_s": 7, "job_timeout_max_s": 7},
        {"job_timeout_s": 7.1, "job_timeout_max_s": 7},
    ),
    (
        "retry_base_s <= retry_cap_s",
        {"retry_base_s": 9, "retry_cap_s": 9},
        {"retry_base_s": 9.1, "retry_cap_s": 9},
    ),
    (
        "retry_cap_s < retry_window_s",
        {"retry_cap_s": 99.9, "retry_window_s": 100},
        {"retry_cap_s": 100, "retry_window_s": 100},
    ),
]


def file_with(folder: Path, text: str | bytes) -> Path:
    path = folder / "hearth.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal_of(
    flags: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    file: Path | None = None,
) -> str:
    with pytest.raises(InvalidSettings) as refusal:
        load(flags or {}, environ or {}, file)
    return str(refusal.value)


def test_nothing_need_be_set() -> None:
    assert load({}, {}).origin == {}


@pytest.mark.parametrize(
    ("in_file", "environ", "flag", "port", "origin"),
    [
        (None, None, None, 8080, None),
        (1, None, None, 1, "file"),
        (None, "2", None, 2, "environment"),
        (None, None, 3, 3, "flag"),
        (1, "2", None, 2, "environment"),
        (1, None, 3, 3, "flag"),
        (None, "2", 3, 3, "flag"),
        (1, "2", 3, 3, "flag"),
        (1, "2", 0, 0, "flag"),
    ],
)
def test_later_sources_win(
    tmp_path: Path,
    in_file: int | None,
    environ: str | None,
    flag: int | None,
    port: int,
    origin: str | None,
) -> None:
    file = file_with(tmp_path, "" if in_file is None else f"port = {in_file}\n")
    loaded = load({"port": flag}, {} if environ is None else {"HEARTH_PORT": environ}, file)
    assert loaded.settings.port == port
    expected = {} if origin is None else {"port": f"file {file}" if origin == "file" else origin}
    assert loaded.origin == expected


def test_each_value_has_its_own_origin(tmp_path: Path) -> None:
    file = file_with(tmp_path, 'host = "::1"\nport = 1\nretries = 3\n')
    loaded = load({"port": 9}, {"HEARTH_LEASE_S": "33", "HEARTH_RETRIES": "4"}, file)
    assert loaded.origin == {
        "host": f"file {file}",
        "port": "flag",
        "lease_s": "environment",
        "retries": "environment",
    }
    s = loaded.settings
    assert (s.host, s.port, s.lease_s, s.retries) == ("::1", 9, 33.0, 4)


def test_only_our_own_variables_are_read() -> None:
    environ = {"PATH": "/bin", "HOME": "/", "PORT": "1", "HEARTH": "x", "hearth_port": "2"}
    assert load({}, environ | {"HEARTH_CONFIG": "where.toml"}).origin == {}


def test_every_setting_can_come_from_the_environment() -> None:
    environ = {
        f"HEARTH_{name.upper()}": ",".join(value) if isinstance(value, list) else str(value)
        for name, value in DEFAULTS.model_dump(mode="json").items()
    }
    loaded = load({}, environ)
    assert loaded.settings == DEFAULTS
    assert set(loaded.origin) == set(Settings.model_fields)


@pytest.mark.parametrize(("relation", "holding", "broken"), RELATIONS)
def test_a_relation_that_is_broken_is_named(
    relation: str, holding: dict[str, float], broken: dict[str, float]
) -> None:
    load(holding, {})
    assert refusal_of(broken).endswith(f"this must hold: {relation}")


def test_every_relation_has_a_row_above() -> None:
    tree = ast.parse((ROOT / "queue_service/settings.py").read_text())
    method = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "_relations"
    )
    texts = {
        node.elts[1].value
        for node in ast.walk(method)
        if isinstance(node, ast.Tuple) and isinstance(node.elts[1], ast.Constant)
    }
    assert texts == {relation for relation, _, _ in RELATIONS}


def test_relations_hold_across_sources(tmp_path: Path) -> None:
    file = file_with(tmp_path, "lease_s = 30\nrenew_every_s = 5\n")
    load({}, {"HEARTH_RENEW_EVERY_S": "10"}, file)
    assert "renew_every_s * 3 <= lease_s" in refusal_of({}, {"HEARTH_RENEW_EVERY_S": "11"}, file)


@pytest.mark.parametrize(
    ("line", "name"),
    [("lease = 3", "lease"), ("LEASE_S = 3", "LEASE_S"), ("[journal]\nopen = 3", "journal")],
)
def test_an_unknown_name_in_the_file_is_refused_with_its_place(
    tmp_path: Path, line: str, name: str
) -> None:
    file = file_with(tmp_path, line)
    assert refusal_of(file=file).startswith(f"{name} (from file {file}): ")


@pytest.mark.parametrize("name", ["HEARTH_LEASE", "HEARTH_LEASE_MS", "HEARTH_", "HEARTH__PORT"])
def test_an_unknown_name_in_the_environment_is_refused_with_its_place(name: str) -> None:
    assert refusal_of(environ={name: "3"}) == f"{name} (environment) is no setting"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "http"),
        ("port", "-1"),
        ("port", "65536"),
        ("port", ""),
        ("lease_s", "0"),
        ("lease_s", "-3"),
        ("lease_s", "3s"),
        ("lease_s", "nan"),
        ("contexts", "0"),
        ("contexts", "1.5"),
        ("retries", "-1"),
        ("keep_done_s", "-1"),
        ("database", "a.b"),
        ("database", "a/b"),
        ("database", ""),
        ("log_format", "xml"),
        ("body_max_bytes", "0"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_place(name: str, value: str) -> None:
    text = refusal_of(environ={f"HEARTH_{name.upper()}": value})
    assert text.startswith(f"{name} (from environment): ")


@pytest.mark.parametrize("name", ["lease_s", "retry_window_s", "keep_done_s", "drain_s"])
def test_a_time_without_end_is_refused(name: str) -> None:
    """No such time can be added to a date."""
    text = refusal_of(environ={f"HEARTH_{name.upper()}": "inf"})
    assert text.startswith(f"{name} (from environment): ")


def test_all_bad_values_are_told_at_once(tmp_path: Path) -> None:
    text = refusal_of({"port": -1}, {"HEARTH_LEASE_S": "x"}, file_with(tmp_path, "retries = -1"))
    assert "port (from flag): " in text
    assert "lease_s (from environment): " in text
    assert f"retries (from file {tmp_path / 'hearth.toml'}): " in text


def test_a_secret_is_not_told(tmp_path: Path) -> None:
    secret = "hearth_abcdefgh_" + "s" * 43
    text = refusal_of({}, {"HEARTH_ADMIN_KEY": secret}, file_with(tmp_path, "port = -1"))
    assert secret not in text


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"port", id="no value"),
        pytest.param(b"port = 1\nport = 2\n", id="twice"),
        pytest.param(b"port = 08\n", id="no number"),
        pytest.param(b'host = "open\n', id="open string"),
        pytest.param(b"\x00", id="NUL"),
        pytest.param(b'host = "\xff"\n', id="not UTF-8"),
    ],
)
def test_a_file_that_is_no_toml_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    file = file_with(tmp_path, content)
    assert refusal_of(file=file).startswith(f"cannot read {file}: ")


def test_a_file_that_is_not_there_is_refused_with_its_name(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.toml", tmp_path):
        assert refusal_of(file=path).startswith(f"cannot read {path}: ")


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        DEFAULTS.lease_s = 3


def test_numbers_say_their_unit_or_are_counts() -> None:
    numeric = {
        name: field.annotation
        for name, field in Settings.model_fields.items()
        if field.annotation in (int, float)
    }
    assert {name for name in numeric if not name.endswith(UNITS)} == COUNTS
    assert all(kind is float for name, kind in numeric.items() if name.endswith(("_s", "_gb")))
    assert all(kind is int for name, kind in numeric.items() if name.endswith("_bytes"))


def test_every_setting_is_described() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
