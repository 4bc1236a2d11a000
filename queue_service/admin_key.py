"""The keys of this installation: the operator's, and the one that signs calls of URLs.

Each is made at the first start and kept in a file that only its owner can read.
"""

from __future__ import annotations

import os
from pathlib import Path

from queue_service.auth import new_key

FILE_NAME = "admin.key"
SIGNING_FILE_NAME = "http-signing.key"


class AdminKeyUnusable(ValueError):
    """The file is there, but there is no key in it."""


def admin_key(data: Path) -> str:
    """Read DATA/admin.key, or make it."""
    return _kept(data / FILE_NAME)


def signing_key(data: Path) -> str:
    """Read DATA/http-signing.key, or make it."""
    return _kept(data / SIGNING_FILE_NAME)


def _kept(path: Path) -> str:
    if not path.exists():
        _make(path)
    key = path.read_text().strip()
    if not key:
        raise AdminKeyUnusable(f"{path} is empty: remove it, and the next start makes a new key")
    return key


def _make(path: Path) -> None:
    """Put a whole file in place, or none; of two daemons that start together one wins."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(new_key() + "\n")
        path.hardlink_to(temporary)
    except FileExistsError:
        return  # the other one's key holds
    finally:
        temporary.unlink()
