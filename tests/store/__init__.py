"""The store's contract, against a real mongod."""

from __future__ import annotations
