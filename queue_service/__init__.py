"""Hearth's queue: when a job runs and for whom. The version lives here and nowhere else."""

from __future__ import annotations

__version__ = "0.1.0"
