"""Tests of the whole service: real daemons on a real database, reached by HTTP and signals."""

from __future__ import annotations

import pytest

# So that an assertion in a harness says as much as one in a test.
pytest.register_assert_rewrite(
    *(f"{__name__}.{module}" for module in ("load", "processes", "support"))
)
