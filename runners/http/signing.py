"""Signatures by which a receiver knows that a request is ours, recent, and of its own tenant.

One key for all daemons, one secret derived of it for each tenant. Keeps neither.
"""

from __future__ import annotations

import hashlib
import hmac

_PURPOSE = "hearth http signing 1:"


def tenant_secret(key: str, tenant: str) -> str:
    """What a tenant's receivers check signatures with; tells nothing of the key or of another's."""
    return hmac.new(key.encode(), f"{_PURPOSE}{tenant}".encode(), hashlib.sha256).hexdigest()


def signature(secret: str, body: bytes, now_s: int) -> str:
    """The value of `X-Hearth-Signature`. The time is signed too, so that none can be replayed."""
    digest = hmac.new(secret.encode(), b"%d.%b" % (now_s, body), hashlib.sha256)
    return f"t={now_s},v1={digest.hexdigest()}"
