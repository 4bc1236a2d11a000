"""Intake: the only birth of jobs. Checks a body, gives it its id, has it written to the journal.

When `accept` returns, the payloads are on disk; until then nothing was promised. Does not know
HTTP, and does not look into a payload.
"""

from __future__ import annotations

from dataclasses import dataclass

from handlers.names import JobType
from queue_service import block, clock
from queue_service.errors import BadRequest, TooLarge
from queue_service.ids import IdMint
from queue_service.journal.journals import Journals
from queue_service.journal.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeLimits:
    """How much one POST may carry."""

    body_bytes: int
    line_bytes: int
    lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A durable post: jobs `{post}-0` to `{post}-{count - 1}`."""

    post: str
    count: int


class Intake:
    """Takes bodies in."""

    def __init__(self, journals: Journals, limits: IntakeLimits) -> None:
        self._journals = journals
        self._limits = limits
        self._mint = IdMint()

    async def accept(self, jobtype: JobType, body: bytes, opts: str) -> Accepted:
        """Append one post and answer once it is durable. Raises for what cannot be taken."""
        body, count = self._checked(body)
        now = clock.now()
        post = self._mint.post_id(round(now.timestamp() * 1000))
        record = Record(id=post, date=now, type=jobtype.type, opts=opts, jobs=count, body=body)
        await self._journals.journal(jobtype.tenant).append(record)
        return Accepted(post=post, count=count)

    def _checked(self, body: bytes) -> tuple[bytes, int]:
        limits = self._limits
        if not body:
            raise BadRequest("the body is empty: it must hold at least one payload line")
        if len(body) > limits.body_bytes:
            raise TooLarge(f"the body is over {limits.body_bytes} bytes")
        body = block.normalise(body)
        over = block.first_over(body, limits.line_bytes)
        if over is not None:
            raise TooLarge(f"line {over + 1} is over {limits.line_bytes} bytes")
        count = block.count(body)
        if count > limits.lines:
            raise TooLarge(
                f"line {limits.lines + 1} is one too many: a body may have {limits.lines}"
            )
        return body, count
