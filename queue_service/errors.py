"""Everything that can be refused, as one small tree with the HTTP status it ends in.

    QueueError
    |-- BadRequest            400  a value that cannot be used; names the parameter
    |-- Unauthorized          401  no key, or one that opens nothing
    |-- NotFound              404  missing, or not yours: the two answer alike
    |-- Conflict              409  it exists already
    |-- TooLarge              413  a line or body over its limit; names the line
    |-- UnsupportedMedia      415  an encoding that is not taken
    |-- InvalidUpload         422  a handler that does not load; names line and message
    |-- JournalUnavailable    503  the journal cannot promise durability just now
    |   `-- JournalFull       507  … because the disk is full
    `-- StoreUnavailable      503  MongoDB does not answer

What a job did is never an exception: it is an Outcome (`runners.base`). Driver errors become
StoreUnavailable in the Mongo store and nowhere else.
"""

from __future__ import annotations


class QueueError(Exception):
    """Base of all refusals. `slug` is the stable name of the problem type."""

    status = 500
    slug = "internal"
    title = "Internal error"
    retry_after_s: int | None = None


class BadRequest(QueueError):
    status, slug, title = 400, "bad-request", "Bad request"


class Unauthorized(QueueError):
    status, slug, title = 401, "unauthorized", "Unauthorized"


class NotFound(QueueError):
    status, slug, title = 404, "not-found", "Not found"


class Conflict(QueueError):
    status, slug, title = 409, "conflict", "Conflict"


class TooLarge(QueueError):
    status, slug, title = 413, "too-large", "Too large"


class UnsupportedMedia(QueueError):
    status, slug, title = 415, "unsupported-media", "Unsupported media type"


class InvalidUpload(QueueError):
    """A handler whose source does not load. `line` is 1-based, 0 where unknown."""

    status, slug, title = 422, "invalid-handler", "Invalid handler"

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


class JournalUnavailable(QueueError):
    status, slug, title = 503, "journal-unavailable", "Journal unavailable"
    retry_after_s = 5


class JournalFull(JournalUnavailable):
    status, slug, title = 507, "disk-full", "Disk full"


class StoreUnavailable(QueueError):
    status, slug, title = 503, "store-unavailable", "Store unavailable"
    retry_after_s = 2
