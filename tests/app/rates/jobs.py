"""Tasks with rates."""

from django_skipqueue import JobContext, job, rate
from django_skipqueue.values.backoff import constant

from ..ledger import note


@job(rate=rate("100/m", by="tenant"))
def hundred_a_minute(tenant: int) -> None:
    """Do nothing."""


@job(rate=rate("1/h", by="tenant", burst=3))
def burst_of_three(tenant: int) -> None:
    """Do nothing."""


@job(rate=rate("1/h", name="bank", burst=1))
def shares_rate() -> None:
    """Do nothing."""


@job(rate=rate("1/h", name="bank", burst=1))
def shares_rate_too() -> None:
    """Do nothing."""


@job(rate=rate("20/s", by="tenant", burst=2), takes_context=True, max_attempts=3, backoff=constant(0.05))
def twenty_per_second(context: JobContext, tenant: str, number: int = 0, fail_before: int = 0) -> None:
    """Write the start into the ledger. Fail in every attempt before the number `fail_before`."""
    note("start", tenant, number, context.job_id)
    if context.attempt < fail_before:
        raise ValueError("not yet")
