"""What tasks write down, so that a test can read what happened when."""

from .models import Ledger


def note(event: str, key: str, number: int, job_id: int) -> None:
    """Write that this happens now. The ids of the rows have the order of the events."""
    Ledger.objects.create(entry=f"{event} {key} {number}", job_id=job_id)
