"""What tenants give us: names, handler definitions and their validation.

Pure values: no I/O, no asyncio, no processes. How code is executed is `runners`; when and for
whom is `queue_service`.
"""

from __future__ import annotations
