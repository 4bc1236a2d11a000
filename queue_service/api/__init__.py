"""The HTTP edge: parse, call one thing, format. No rules of the queue live here."""

from __future__ import annotations
