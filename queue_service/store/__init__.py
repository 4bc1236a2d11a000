"""The shared store: batches, handlers, tenants and daemons in MongoDB, spoken to in verbs.

The database driver is imported in this room and nowhere else.
"""

from __future__ import annotations
