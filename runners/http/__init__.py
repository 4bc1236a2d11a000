"""Handlers that are URLs: payload lines are POSTed to them, their answers are the results.

Starts no process and runs no tenant's code; the danger here is where a tenant makes us connect to.
"""

from __future__ import annotations
