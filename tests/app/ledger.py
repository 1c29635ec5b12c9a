"""Rows that tasks write, so that a test can read in which order things happened."""

from .models import Ledger


def note(event: str, key: str, number: int, job_id: int) -> None:
    """Write a row that says that this event happens now. The ids of the rows have the order of the events."""
    Ledger.objects.create(entry=f"{event} {key} {number}", job_id=job_id)
