"""Tests of the runner for handlers that are URLs."""

from __future__ import annotations
