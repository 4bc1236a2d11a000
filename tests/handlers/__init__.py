"""Tests of what tenants give us: names and definitions. Pure values, so nothing is started."""

from __future__ import annotations
