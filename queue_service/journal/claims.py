"""Which bytes of one segment are still to be read: free, reserved or committed.

A segment is read from its front. A reservation takes the first free range and keeps it from others
until it is committed, cancelled, or its time has run out and somebody else asks. Commits may come
in any order; the read point moves over the committed prefix. Pure bookkeeping: no I/O, no clock.
"""

from __future__ import annotations

from enum import Enum, auto


class ClaimState(Enum):
    RESERVED = auto()  # taken, not read yet: where it will end is not known
    READ = auto()  # its end is known and final
    COMMITTED = auto()  # stored; waits only for what lies before it
    RELEASED = auto()  # cancelled, lapsed, or behind the read point


class Reservation:
    """A range of one segment, kept from other readers.

    `end` is the furthest it may reach until it has been read, and exact from then on. `inherited`
    says that the segment is of an earlier life, which may have stored some of the records.
    """

    __slots__ = (
        "deadline",
        "end",
        "inherited",
        "max_bytes",
        "max_records",
        "segment_uid",
        "start",
        "state",
    )

    def __init__(
        self,
        *,
        segment_uid: str,
        start: int,
        end: int,
        max_records: int,
        max_bytes: int,
        deadline: float,
        inherited: bool,
    ) -> None:
        self.inherited = inherited
        self.segment_uid = segment_uid
        self.start = start
        self.end = end
        self.max_records = max_records
        self.max_bytes = max_bytes
        self.deadline = deadline
        self.state = ClaimState.RESERVED

    @property
    def held(self) -> bool:
        """Whether it still keeps its range from others and may be committed."""
        return self.state in (ClaimState.RESERVED, ClaimState.READ)

    def __repr__(self) -> str:
        return f"<Reservation {self.segment_uid} [{self.start}, {self.end}) {self.state.name}>"


class Claims:
    """The ranges of one segment behind its read point `point`, up to its durable end `end`."""

    def __init__(self, *, segment_uid: str, point: int, end: int, inherited: bool = False) -> None:
        self._uid = segment_uid
        self._inherited = inherited
        self._held: list[Reservation] = []  # by start; never overlapping
        # Sequence numbers expected at places where a read may begin again.
        self._seqs: dict[int, int] = {0: 0}
        self.point = point
        self.end = end

    @property
    def unread_bytes(self) -> int:
        return self.end - self.point

    @property
    def undecided(self) -> bool:
        """Whether a reservation has yet to learn its end, so that nobody can start behind it."""
        return any(claim.state is ClaimState.RESERVED for claim in self._held)

    @property
    def free(self) -> tuple[int, int] | None:
        """The first range that nobody has taken."""
        at = self.point
        for claim in self._held:
            if at < claim.start:
                return at, claim.start
            at = claim.end
        return (at, self.end) if at < self.end else None

    @property
    def deadline(self) -> float | None:
        """When the next reservation lapses."""
        return min((claim.deadline for claim in self._held if claim.held), default=None)

    def reserve(self, *, max_records: int, max_bytes: int, deadline: float) -> Reservation | None:
        """Take the beginning of the first free range."""
        free = self.free
        if free is None or self.undecided:
            return None
        claim = Reservation(
            segment_uid=self._uid,
            start=free[0],
            end=free[1],
            max_records=max_records,
            max_bytes=max_bytes,
            deadline=deadline,
            inherited=self._inherited,
        )
        self._held.append(claim)
        self._held.sort(key=lambda claim: claim.start)
        return claim

    def expected_seq(self, claim: Reservation) -> int | None:
        return self._seqs.get(claim.start)

    def decide(self, claim: Reservation, end: int, seq: int | None) -> None:
        """Fix the end of a reservation that has been read; what it left is free again."""
        claim.end = end
        claim.state = ClaimState.READ
        if seq is not None:
            self._seqs[end] = seq

    def commit(self, claim: Reservation) -> bool:
        """Count a read reservation as stored; False when it is not held any more."""
        if claim.state is not ClaimState.READ:
            return False
        claim.state = ClaimState.COMMITTED
        while self._held and self._held[0].state is ClaimState.COMMITTED:
            if self._held[0].start > self.point:
                break
            self._move(self._held.pop(0).end)
        return True

    def cancel(self, claim: Reservation) -> bool:
        """Make the range readable again; False when it is not held any more."""
        if not claim.held:
            return False
        claim.state = ClaimState.RELEASED
        self._held.remove(claim)
        return True

    def lapse(self, now: float) -> None:
        """Cancel what has run out of time."""
        for claim in [claim for claim in self._held if claim.held and claim.deadline <= now]:
            self.cancel(claim)

    def skip_to(self, offset: int) -> None:
        """Count everything before `offset` as stored, whoever holds it."""
        for claim in [claim for claim in self._held if claim.start < offset]:
            claim.state = ClaimState.RELEASED
            self._held.remove(claim)
        self._move(max(self.point, min(offset, self.end)))

    def _move(self, point: int) -> None:
        self.point = point
        self._seqs = {at: seq for at, seq in self._seqs.items() if at >= point}
