"""The operator's key: made once, kept private, and never an empty one."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from queue_service.admin_key import FILE_NAME, admin_key
from queue_service.auth import stored_form

NOW = datetime(2026, 11, 18, 8, 0, tzinfo=UTC)
ADMIN = "hearth_operator_" + "a" * 43


def test_the_admin_key_is_made_once_and_read_back(tmp_path: Path) -> None:
    key = admin_key(tmp_path)
    stored_form(key, "acme", NOW)  # has the form of a key
    assert (tmp_path / FILE_NAME).read_text() == f"{key}\n"
    assert [admin_key(tmp_path) for _ in range(3)] == [key] * 3


def test_an_admin_key_of_ones_own_is_kept(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(f"  {ADMIN}\n\n")
    assert admin_key(tmp_path) == ADMIN


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_its_owner_can_read_the_admin_key(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        admin_key(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600


def test_every_directory_has_an_admin_key_of_its_own(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    assert admin_key(folders[0]) != admin_key(folders[1])


@pytest.mark.parametrize("content", ["", "\n", "  \n"])
def test_a_file_without_a_key_does_not_become_the_admin_key(tmp_path: Path, content: str) -> None:
    """A start that was cut short, or a full disk, leaves an empty file behind."""
    (tmp_path / FILE_NAME).write_text(content)
    try:
        found = admin_key(tmp_path)
    except (OSError, ValueError):
        return
    assert found
