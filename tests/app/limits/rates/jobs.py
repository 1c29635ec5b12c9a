"""Tasks with limits and rates."""

import time

from django_skipqueue import JobContext, by, job, limit, rate

from ...ledger import note


@job(rate=rate("100/m", by="tenant"), concurrency=limit(2, by="tenant"))
def hundred_a_minute_of_two(tenant: int) -> None:
    """Do nothing."""


@job(rate=rate("1/h", burst=2), concurrency=limit(1, by="account"))
def rated_and_limited(account: str) -> None:
    """Do nothing."""


@job(rate=rate("1/h", burst=1), sequence=by("order"))
def rated_in_order(order: str) -> None:
    """Do nothing."""


@job(rate=rate("20/s", by="tenant", burst=2), concurrency=limit(2, by="account"), takes_context=True)
def twenty_per_second_and_two_at_once(context: JobContext, tenant: str, account: str, seconds: float = 0.0) -> None:
    """Write the start and the end into the ledger."""
    note("start", account, 0, context.job_id)
    time.sleep(seconds)
    note("end", account, 0, context.job_id)


@job(rate=rate("50/s", by="tenant", burst=2), fair_by="tenant")
def rated_fairly(tenant: str) -> None:
    """Do nothing; each tenant has a rate of its own."""


@job(rate=rate("50/s", burst=2), fair_by="tenant")
def rated_together(tenant: str) -> None:
    """Do nothing; the tenants share the rate, fairly."""


@job(rate=rate("20/s", by="tenant", burst=2), sequence=by("order"), takes_context=True)
def twenty_per_second_in_order(context: JobContext, tenant: str, order: str, number: int) -> None:
    """Write the start and the end into the ledger."""
    note("start", tenant, number, context.job_id)
    note("end", order, number, context.job_id)
