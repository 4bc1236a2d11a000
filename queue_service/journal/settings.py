"""The journal's limits as one value; where they come from is not decided here."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSettings:
    """Sizes, counts and pauses of all journals of a daemon.

    `segment_bytes`: a file over this is not appended to any more.
    `queue_bytes`: most bytes of one tenant that may wait for an fdatasync.
    `group_bytes`: about how much one write and fdatasync take at a time.
    `group_wait_s`: least time between two groups, while several appends come at a time.
    `tail_bytes`: most bytes of all tenants kept in memory until ingest has read them.
    `open_files`: most files held open for appending; at least `threads`.
    `cursor_every_s`: how often read points are written down.
    `failure_window_s`: a second failure within it stops appends for `refusal_s`.
    """

    segment_bytes: int = 64 * _MIB
    queue_bytes: int = 64 * _MIB
    group_bytes: int = 4 * _MIB
    group_wait_s: float = 0.002
    tail_bytes: int = 16 * _MIB
    open_files: int = 128
    threads: int = 4
    cursor_every_s: float = 1.0
    failure_window_s: float = 60.0
    refusal_s: float = 5.0

    def __post_init__(self) -> None:
        if self.open_files < self.threads:
            raise ValueError("open_files must be at least threads")
