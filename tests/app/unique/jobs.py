"""Tasks with unique keys."""

import time

from django_skipqueue import JobContext, job, unique_by

from ..ledger import note


@job(unique=unique_by("key"), on_conflict="rerun", takes_context=True)
def runs_again(context: JobContext, key: str, number: int = 0, seconds: float = 0.0) -> None:
    """Write the start and the end into the ledger."""
    note("start", key, number, context.job_id)
    time.sleep(seconds)
    note("end", key, number, context.job_id)


@job(unique_key=lambda payment_id: f"mail-{payment_id}")
def send_once(payment_id: int) -> None:
    """A task whose jobs have a key made from their arguments."""
