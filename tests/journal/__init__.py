"""Tests of the journal; nothing here needs a database or the network."""

from __future__ import annotations
