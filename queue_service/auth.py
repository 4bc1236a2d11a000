"""Keys: who a request speaks for.

A key is `hearth_<8 characters of id>_<43 characters of secret>`. The store has only the secret's
SHA-256: a random 256-bit secret needs no slow hash. Makes and checks keys; where they are kept is
the store's business.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, replace
from datetime import datetime

from queue_service import clock
from queue_service.errors import StoreUnavailable, Unauthorized
from queue_service.store.base import Key, TenantStore

_FORM = re.compile(r"hearth_([a-z0-9]{8})_([A-Za-z0-9_-]{43})")
_ID_CHARS = "abcdefghijklmnopqrstuvwxyz0123456789"
_REMEMBERED_S = 5.0
_TRUSTED_S = 3600.0
_REMEMBERED_MAX = 10_000
_NO_DIGEST = bytes(32)


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a valid key belongs to: a tenant, or the operator (`tenant` None)."""

    tenant: str | None
    key_id: str


def new_key() -> str:
    """A key that nobody has seen before."""
    key_id = "".join(secrets.choice(_ID_CHARS) for _ in range(8))
    return f"hearth_{key_id}_{secrets.token_urlsafe(32)}"


def stored_form(key: str, tenant: str, now: datetime) -> Key:
    """What the store may keep of a key."""
    form = _FORM.fullmatch(key)
    if form is None:
        raise ValueError("not a key")
    return Key(id=form[1], digest=_digest(form[2]), tenant=tenant, created=now)


def _digest(secret: str) -> bytes:
    # A header may hold bytes that are no UTF-8; those come as lone surrogates.
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True, slots=True)
class _Known:
    """A key that was good at `good_at`, and when the store was last asked about it."""

    caller: Caller
    good_at: float
    asked_at: float


class Keys:
    """Checks keys. A good one is remembered for a moment, so revoking takes up to 5 seconds.

    While the store does not answer, keys that were good of late stay so: submitting must go on.
    """

    def __init__(self, tenants: TenantStore, admin_key: str) -> None:
        self._tenants = tenants
        self._admin = _digest(admin_key)
        self._known: dict[str, _Known] = {}

    async def caller(self, authorization: str) -> Caller:
        """Whom an Authorization header speaks for; Unauthorized for any that opens nothing."""
        known = self._known.get(authorization)
        now = clock.monotonic()
        if known is None:
            return await self._ask(authorization, now)
        if now >= known.asked_at + _REMEMBERED_S:
            # Others need not ask, and wait, while we do.
            self._known[authorization] = replace(known, asked_at=now)
            try:
                return await self._ask(authorization, now)
            except StoreUnavailable:
                if now >= known.good_at + _TRUSTED_S:
                    raise
        return known.caller

    async def _ask(self, authorization: str, now: float) -> Caller:
        try:
            caller = await self._check(authorization)
        except Unauthorized:
            self._known.pop(authorization, None)
            raise
        if len(self._known) >= _REMEMBERED_MAX:
            self._known.clear()
        self._known[authorization] = _Known(caller, good_at=now, asked_at=now)
        return caller

    async def _check(self, authorization: str) -> Caller:
        scheme, _, key = authorization.partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer":
            raise Unauthorized("send a key: Authorization: Bearer hearth_…")
        if key and hmac.compare_digest(_digest(key), self._admin):
            return Caller(None, "admin")
        form = _FORM.fullmatch(key)
        found = await self._tenants.find_key(form[1]) if form else None
        # Compared in any case, so that an unknown id takes as long as a wrong secret.
        right = hmac.compare_digest(
            _digest(form[2] if form else ""), found.digest if found else _NO_DIGEST
        )
        if found is None or not right:
            raise Unauthorized("this key opens nothing")
        return Caller(found.tenant, found.id)

    def forget(self) -> None:
        """Make revocations hold at once on this daemon."""
        self._known.clear()
