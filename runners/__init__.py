"""How tenants' code is executed: warm contexts, their pool, the sandbox seam, the wire format.

Knows nothing of queues, stores, retries or HTTP APIs; could be lifted into another product.
"""

from __future__ import annotations
