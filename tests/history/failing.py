"""Failed attempts, in the roll-ups."""

import time

from django_skipqueue.parts.history import failure_counts as failures
from django_skipqueue.parts.history import rollups
from django_skipqueue.parts.history.failure_counts import Failures
from django_skipqueue.values.records import Cause

from ..app.failing import make_failing
from ..app.rows import DEFAULT


def roll_up(cause: Cause, number: int = 1, *, seconds_ago: float = 0.0, line: int | None = 42, job_id: int = 7) -> None:
    """Count so many failed attempts, as a worker does."""
    at = time.time() - seconds_ago
    counted = {(int(at // 60), cause): Failures(number, at, at, line, job_id)}
    rollups.roll_up(DEFAULT, [], list(failures.rows(counted)))


def make_broken_release() -> None:
    """A release ten minutes ago broke a task; another fails now and then, as it did all week."""
    broken = Cause("payments.jobs.capture_payment", "psp.errors.GatewayUnavailable", "payments.gateway.capture")
    for minute in range(11):
        roll_up(
            broken, 14 + minute % 3, seconds_ago=60.0 * minute, line=17, job_id=make_failing(broken, "scheduled").pk
        )
    mail = Cause("payments.jobs.send_receipt", "smtplib.SMTPServerDisconnected", "payments.mailbox.deliver")
    for hour in range(100):
        roll_up(mail, 1 + hour * hour % 7, seconds_ago=3_600.0 * hour + 1_500, line=88)
    value = Cause("search.jobs.index_product", "builtins.KeyError", "search.documents.price_of")
    for hour in range(3, 60, 7):
        roll_up(value, 1 + hour % 3, seconds_ago=3_600.0 * hour, line=31)
    died = Cause("reports.jobs.build_monthly_report", "django_skipqueue.exceptions.WorkerDied", "")
    roll_up(died, 2, seconds_ago=9 * 3_600.0, line=None)
