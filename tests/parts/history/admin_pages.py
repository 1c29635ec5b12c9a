"""The pages of the admin that show roll-ups, and the roll-ups of the busy evening of `tests.console.admin.scene`."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from django.test import override_settings
from django.utils import timezone

from django_skipqueue.console.search import cause_query
from django_skipqueue.models import Deployment, Job, RollUp
from django_skipqueue.parts.history.causes import acknowledge
from django_skipqueue.parts.history.models import Span
from django_skipqueue.values.counting import added, histogram
from django_skipqueue.values.records import Cause

from ...app.failing import BAD_VALUE, make_failing
from ...app.rows import DEFAULT
from .failing import record_ended_attempts, record_failures

JOBS = "django_skipqueue/job/"


def make_pages(cause: Cause) -> Mapping[str, str]:
    """The addresses of the pages by their names. A job has failed with the cause."""
    make_evening(hours=2)
    record_failures(cause, job_id=Job.objects.failed().filter(task=cause.task).latest("pk").pk, line=17)
    return {
        "failures": f"{JOBS}failures/",
        "cause": f"{JOBS}failures/cause/?{cause_query(cause)}",
        "task": f"{JOBS}task/?task={cause.task}",
    }


def make_rows() -> None:
    """Count a failed attempt of `BAD_VALUE`, so that it has a page."""
    record_failures(BAD_VALUE)


def make_evening(*, hours: int = 6) -> None:
    make_rollups(hours=hours)
    make_broken_release()


def make_broken_release() -> None:
    """Count three causes: a release broke a task ten minutes ago, one task fails all week, and one has stopped."""
    for name, minutes in (("4f2ac91", 26 * 60), ("5b3cd02", 11)):
        Deployment.objects.create(name=name, first_at=timezone.now() - timedelta(minutes=minutes))
    gateway_unavailable = Cause(
        "payments.jobs.capture_payment", "psp.errors.GatewayUnavailable", "payments.gateway.capture"
    )
    with override_settings(SKIPQUEUE={"DEPLOYMENT": "5b3cd02"}):
        for minute in range(11):
            job_id = _failing(gateway_unavailable, "503 Service Unavailable: maintenance until 02:15")
            record_failures(gateway_unavailable, 14 + minute % 3, seconds_ago=60.0 * minute, line=17, job_id=job_id)
    with override_settings(SKIPQUEUE={"DEPLOYMENT": "4f2ac91"}):
        mail_disconnected = Cause(
            "payments.jobs.send_receipt", "smtplib.SMTPServerDisconnected", "payments.mailbox.deliver"
        )
        job_id = _failing(mail_disconnected, "Connection unexpectedly closed")
        for hour in range(100):
            record_failures(
                mail_disconnected, 1 + hour * hour % 7, seconds_ago=3_600.0 * hour + 1_500, line=88, job_id=job_id
            )
        missing_price = Cause("search.jobs.index_product", "builtins.KeyError", "search.documents.price_of")
        job_id = _failing(missing_price, "'price_gross'")
        for hour in range(3, 60, 7):
            record_failures(missing_price, 1 + hour % 3, seconds_ago=3_600.0 * hour, line=31, job_id=job_id)
        worker_died = Cause("reports.jobs.build_monthly_report", "django_skipqueue.exceptions.WorkerDied", "")
        record_failures(worker_died, 2, seconds_ago=9 * 3_600.0, line=None)
    for task in (mail_disconnected.task, missing_price.task):
        record_ended_attempts(task, seconds_ago=120)
    acknowledge(DEFAULT, missing_price, by="ann", note="waits for the price service, ticket 1187")


def _failing(cause: Cause, message: str) -> int:
    """The id of a job whose last attempt failed with this cause."""
    entry = {"exception": cause.exception, "place": cause.place, "message": message, "traceback": message}
    return make_failing(cause, "scheduled", errors=[entry]).pk


SHARES = {"default": 0.45, "emails": 0.3, "search": 0.15, "payments": 0.07, "reports": 0.03}
"""The queues of the shop, with their shares of all jobs."""
TASKS = {
    "default": ("shipping.jobs.print_label", 0.22),
    "emails": ("payments.jobs.send_receipt", 0.4),
    "search": ("search.jobs.index_product", 0.03),
    "payments": ("payments.jobs.capture_payment", 1.4),
    "reports": ("reports.jobs.build_monthly_report", 48.0),
}
"""The task of each queue, and the seconds that it runs."""
INCIDENT = 38
"""Minutes since the mail server stopped answering."""


def make_rollups(*, hours: int = 6) -> None:
    """The busy evening in roll-ups: the load rises and falls, and then receipts can no longer be sent."""
    now = int(timezone.now().timestamp())
    rollups: dict[tuple[int, str, str, int], RollUp] = {}
    for minutes in range(hours * 60):
        at_minute = (now // 60 - minutes) * 60
        for queue_name, share in SHARES.items():
            rollup = _rollup_of_minute(queue_name, share, minutes)
            for span in (Span.MINUTE, Span.HOUR, Span.EVER):
                starts_at = at_minute // span * span if span else 0
                for queue_and_task in ((queue_name, TASKS[queue_name][0]), (queue_name, ""), ("", "")):
                    key = (span, *queue_and_task, starts_at)
                    _add_to_total(rollups.setdefault(key, _empty_rollup(*key)), rollup)
    RollUp.objects.bulk_create(rollups.values(), batch_size=1_000)


def _rollup_of_minute(queue_name: str, share: float, minutes: int) -> RollUp:
    """Count one minute of one queue."""
    load = 1 + 0.45 * math.sin(minutes / 47) + 0.18 * math.sin(minutes * 2.4) + 0.1 * math.sin(minutes * 7.1)
    number = max(0, round(640 * share * load))
    is_broken = queue_name == "emails" and minutes < INCIDENT
    retried = round(number * (0.86 if is_broken else 0.004 + 0.004 * (minutes % 7 == 0)))
    failed = round(number * 0.05) if is_broken and minutes < INCIDENT - 12 else int(minutes % 53 == 0)
    ran = 20.0 if is_broken else TASKS[queue_name][1] * (1 + 0.3 * math.sin(minutes / 19))
    waited = 0.02 * load + (INCIDENT - minutes) * 9.0 * is_broken
    return RollUp(
        completed=number - retried - failed, retried=retried, failed=failed, enqueued=number,
        waited=histogram(waited * (0.4 + job / max(number, 1)) for job in range(number)),
        ran=histogram(ran * (0.3 + 1.2 * job / max(number, 1)) for job in range(number)),
        waited_seconds=waited * number, ran_seconds=ran * number,
        depth=round(number * 0.02) + (is_broken and (INCIDENT - minutes) * 31),
    )  # fmt: skip


def _empty_rollup(span: Span, queue_name: str, task: str, start: int) -> RollUp:
    return RollUp(
        span=span, queue_name=queue_name, task=task, starts_at=datetime.fromtimestamp(start, UTC), depth=0,
        waited=[], ran=[], completed=0, retried=0, failed=0, enqueued=0, discarded=0,
        waited_seconds=0.0, ran_seconds=0.0,
    )  # fmt: skip


def _add_to_total(total: RollUp, minute: RollUp) -> None:
    for name in ("completed", "retried", "failed", "enqueued", "waited_seconds", "ran_seconds"):
        setattr(total, name, getattr(total, name) + getattr(minute, name))
    total.waited = added(total.waited or [], minute.waited or [])
    total.ran = added(total.ran or [], minute.ran or [])
    if total.span == Span.MINUTE:
        total.depth = (total.depth or 0) + (minute.depth or 0)
    else:
        total.depth = max(total.depth or 0, minute.depth or 0)
