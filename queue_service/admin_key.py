"""The operator's key: made at the first start and kept in a file that only its owner can read."""

from __future__ import annotations

import os
from pathlib import Path

from queue_service.auth import new_key

FILE_NAME = "admin.key"


def admin_key(data: Path) -> str:
    """Read DATA/admin.key, or make it."""
    path = data / FILE_NAME
    try:
        # O_EXCL: two daemons that start together must not each believe in their own key.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    with os.fdopen(descriptor, "w") as file:
        key = new_key()
        file.write(key + "\n")
    return key
