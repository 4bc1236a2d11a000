"""Result records: the lines of a finished batch, one record per job, as tenants read them.

This is where batches are taken apart, and only because somebody asked. Values are passed through
as the JSON text the handler answered with; they are not parsed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from queue_service import block
from queue_service.batch import Finished, code_of
from queue_service.ids import job_id
from runners.base import OK


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRecord:
    """How one job ended."""

    post: str
    line: int
    type: str
    attempt: int
    exitcode: int
    value: bytes
    done: str
    batch_index: int

    @property
    def id(self) -> str:
        return job_id(self.post, self.line)

    @property
    def code(self) -> str:
        return code_of(self.exitcode)

    def as_json(self) -> dict[str, Any]:
        """For orjson: the value goes through as it is."""
        return {
            "id": self.id,
            "type": self.type,
            "code": self.code,
            "exitcode": self.exitcode,
            "value": orjson.Fragment(self.value or b"null"),
            "attempt": self.attempt,
            "done_dt": self.done,
        }


def final_records(
    done: Finished, *, post: str | None = None, codes: Collection[str] = (), again: bool = False
) -> Iterator[ResultRecord]:
    """The jobs of a batch that will not be run again, in order, optionally of one post or code.

    With `again` also those that were queued for another attempt: then it is a record of this
    attempt. A batch that was read without its block gives records without values.
    """
    bad = {line.index: line for line in done.bad}
    moment = done.done_dt.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    lines = block.lines_of(done.out)
    base = 0
    for span in done.spans:
        if post is None or span.post == post:
            for offset in range(span.count):
                index = base + offset
                line = bad.get(index)
                if line and line.again and not again:
                    continue
                exitcode = line.exitcode if line else OK
                if codes and code_of(exitcode) not in codes:
                    continue
                yield ResultRecord(
                    post=span.post,
                    line=span.first + offset,
                    type=done.jobtype.type,
                    attempt=done.attempt,
                    exitcode=exitcode,
                    value=lines[index] if lines else b"",
                    done=moment,
                    batch_index=index,
                )
        base += span.count
