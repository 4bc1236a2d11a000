"""The journal: per tenant, an append-only local log of accepted batches.

An append returns once its record is on disk; ingest reserves records from the front, stores them
elsewhere and commits. Nothing here knows of MongoDB, HTTP or what a payload means.
"""

from __future__ import annotations

from queue_service.journal.claims import Reservation
from queue_service.journal.journal import Journal, ReservationLapsed
from queue_service.journal.journals import Journals, JournalsUnusable
from queue_service.journal.record import Record
from queue_service.journal.scan import Damage, DamageKind
from queue_service.journal.settings import JournalSettings

__all__ = [
    "Damage",
    "DamageKind",
    "Journal",
    "JournalSettings",
    "Journals",
    "JournalsUnusable",
    "Record",
    "Reservation",
    "ReservationLapsed",
]
