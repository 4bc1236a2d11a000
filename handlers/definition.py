"""A handler: one immutable version of the code that runs a jobtype.

Checks shape and sizes. Whether the source compiles is the language's business and is answered
by the runner (`runners.base.Runner.check`), inside a confined process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields

from handlers.names import check_function
from handlers.urls import InvalidURL, check_url

SOURCE_MAX_BYTES = 1 << 20
_SCRIPTS = ("before", "beforeEach", "body", "afterEach")


class InvalidHandler(ValueError):
    """A definition that cannot be stored; the message names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a tenant uploads. Equal definitions are the same version."""

    lang: str
    body: str
    eid: str = ""
    before: str = ""
    beforeEach: str = ""
    afterEach: str = ""

    def digest(self) -> str:
        """A fingerprint of all fields, so that an unchanged upload can keep its version."""
        text = "\0".join(f"{name}={value}" for name, value in sorted(asdict(self).items()))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A stored definition: what a batch is run with, pinned for the batch's whole life."""

    tenant: str
    name: str
    version: int
    definition: Definition

    @property
    def key(self) -> tuple[str, str, str]:
        """What a warm context may be shared by. Never equal for two tenants."""
        if self.definition.eid:
            return (self.tenant, self.definition.lang, f"eid:{self.definition.eid}")
        return (self.tenant, self.definition.lang, f"{self.name}@{self.version}")

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}@{self.version}"


def define(name: str, raw: Mapping[str, object], langs: Collection[str]) -> Definition:
    """Build a Definition out of an upload's fields, or raise InvalidHandler / InvalidName."""
    check_function(name)
    known = {field.name for field in fields(Definition)}
    unknown = sorted(set(raw) - known)
    if unknown:
        raise InvalidHandler(f"unknown field {unknown[0]!r}; known are {', '.join(sorted(known))}")
    text: dict[str, str] = {}
    for field, value in raw.items():
        if type(value) is not str:
            raise InvalidHandler(f"field {field!r} must be a string")
        text[field] = value
    if not text.get("body", "").strip():
        raise InvalidHandler("field 'body' is missing or empty")
    if text.get("lang") not in langs:
        raise InvalidHandler(
            f"unknown lang {text.get('lang', '')[:40]!r}; known are {', '.join(sorted(langs))}"
        )
    if text.get("eid"):
        check_function(text["eid"])
    for field in _SCRIPTS:
        _check_source(field, text.get(field, ""))
    if text["lang"] == "http":
        text["body"] = _check_http(text)
    return Definition(**text)


def _check_http(text: Mapping[str, str]) -> str:
    """The body of an http handler: its URL in normal form, and no scripts around it."""
    for field in _SCRIPTS:
        if field != "body" and text.get(field):
            raise InvalidHandler(f"field {field!r} must be empty: a URL has no scripts")
    try:
        return str(check_url(text["body"].strip()))
    except InvalidURL as error:
        raise InvalidHandler(f"field 'body': {error}") from None


def _check_source(field: str, source: str) -> None:
    try:
        size = len(source.encode())
    except UnicodeEncodeError:
        raise InvalidHandler(f"field {field!r} is not valid Unicode text") from None
    if size > SOURCE_MAX_BYTES:
        raise InvalidHandler(f"field {field!r} is over {SOURCE_MAX_BYTES} bytes")
    if "\0" in source:
        raise InvalidHandler(f"field {field!r} contains a NUL character")
    if source.startswith("\ufeff"):
        raise InvalidHandler(f"field {field!r} starts with a byte order mark")
