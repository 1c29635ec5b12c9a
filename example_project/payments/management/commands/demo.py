"""`manage.py demo` sends receipts for 412 payments by a worker; two of them fail. Then it checks and prints figures."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import connection
from django.db.models import Count, QuerySet

from django_skipqueue import Batch
from django_skipqueue.models import Job
from payments.jobs import count_receipts, do_nothing, send_receipt
from payments.mailbox import Mailbox
from payments.models import BlockedAddress, Payment
from payments.summary import Summary, rate
from payments.tasks import turnover

from ..processes import running
from .prepare import NAME, PASSWORD

# Two payments have the e-mail addresses of accountants, from which earlier mail has come back.
ACCOUNTANTS = {
    "0404": BlockedAddress(address="office@ledger-and-sons.example", reason="the mailbox is full"),
    "0411": BlockedAddress(address="invoices@zaehlwerk.example", reason="the mailbox is full"),
}
WORKER_LOG: Path = settings.BASE_DIR / "worker.log"
TIME_LIMIT = 120  # seconds; the demo usually takes a few
EMPTY_JOBS = 5_000

# The mail server is busy now and then.
ENVIRONMENT = {"EMAIL_URL": "", "EMAIL_BACKEND": "payments.mailbox.BusyMailboxBackend"}

CARRIED = """  Celery  ran the receipts, behind RabbitMQ: the attempts that failed name {workers} as their worker.
          All else is PostgreSQL's: the jobs, their retries and their results, the batch, the admin"""
PAID = "  Paid    {years}; by a @task of Django's, on the same worker"
NEXT = f"""  Next    make serve
          Log in to the admin as {NAME} with the password {PASSWORD}, unblock one of the two addresses,
          open its failed job, and click Retry: the receipt is sent.
"""


class Command(BaseCommand):
    """Send the receipts of all invoices through the queue."""

    help = "E-mail the receipts of 412 payments through the queue, and check them. Starts afresh each time."

    def handle(self, *args: Any, **options: Any) -> None:
        """Prepare the database, defer the jobs, run them, and print a summary."""
        call_command("prepare")
        start_afresh()
        call_command("import_invoices")
        bring_in_accountants()
        payments = Payment.objects.order_by("reference").values_list("pk", flat=True)
        with Batch(name="receipts", on_finish=count_receipts.s()) as batch:
            ids = send_receipt.defer_many([{"payment_id": payment_id} for payment_id in payments])
        self.stdout.write(f"{len(ids)} jobs deferred, one {send_receipt.name} for each payment.")

        report = turnover.enqueue() if turnover else None
        jobs = Job.objects.filter(pk__in=ids)
        try:
            with running(WORKER_LOG, ENVIRONMENT, time_limit=TIME_LIMIT) as still_run:
                work(jobs, Progress(self.stdout, total=len(ids)), still_run)
                speed = jobs_a_second(still_run)
                counted = result_of(batch.jobs.filter(task=count_receipts.name), still_run)
        finally:
            take_back(jobs)
        summary = Summary.of(jobs, Mailbox())
        self.stdout.write(summary.report(log=WORKER_LOG, speed=speed))
        self.stdout.write(f"  Batch   {counted}, says the job that is enqueued after the last of them")
        if settings.CARRIER:
            self.stdout.write(CARRIED.format(workers=", ".join(sorted(workers_in_errors(jobs)))))
        if report:
            report.refresh()
            self.stdout.write(PAID.format(years=in_years(report.return_value)))
        problems = summary.problems()
        if problems:
            raise CommandError(" ".join(problems))
        self.stdout.write(NEXT)


def start_afresh() -> None:
    """Delete the rows and mails of an earlier demo, but nothing that does not belong to the shop."""
    Job.objects.filter(task__startswith="payments.").delete()
    Payment.objects.all().delete()
    BlockedAddress.objects.all().delete()
    Mailbox().clear()


def take_back(jobs: QuerySet[Job]) -> None:
    """If the demo was stopped, take back the jobs that Celery has not run: the broker may end with the demo."""
    connection.close()  # a signal may have raised an error in the middle of a query
    if settings.CARRIER and jobs.filter(status="running").exists():
        call_command("runrelay", reclaim=settings.CARRIER, yes=True)


def bring_in_accountants() -> None:
    """Change the addresses of two payments to blocked addresses."""
    BlockedAddress.objects.bulk_create(ACCOUNTANTS.values())
    for reference, blocked in ACCOUNTANTS.items():
        Payment.objects.filter(reference=reference).update(email=blocked.address)


class Progress:
    """A line that shows how far the worker is: overwritten on a terminal, otherwise written after each quarter."""

    def __init__(self, out: OutputWrapper, *, total: int) -> None:
        self.out = out
        self.total = total
        self.quarters = 0

    def show(self, counts: dict[str, int]) -> bool:
        """Show how many jobs have each status. Returns whether any job is not finished."""
        completed, failed, again = (counts.get(status, 0) for status in ("completed", "failed", "scheduled"))
        line = f"  {completed} receipts sent, {again} to be tried again, {failed} failed"
        quarters = (completed + failed) * 4 // self.total
        if self.out.isatty():
            self.out.write(f"\r{line}  ", ending="")
            self.out.flush()
        elif quarters > self.quarters:
            self.out.write(line)
        self.quarters = quarters
        return completed + failed < self.total

    def end(self) -> None:
        """Begin a new line."""
        if self.out.isatty():
            self.out.write("")


def work(jobs: QuerySet[Job], progress: Progress, still_run: Callable[[], None]) -> None:
    """Show the progress until all jobs are finished."""
    try:
        while progress.show(by_status(jobs)):
            still_run()
            time.sleep(0.2)
    finally:
        progress.end()


def jobs_a_second(still_run: Callable[[], None]) -> float:
    """Measure how fast the queue itself is, by jobs that do nothing, and delete these jobs afterwards."""
    jobs = Job.objects.filter(task=do_nothing.name)
    do_nothing.defer_many([()] * EMPTY_JOBS)
    while jobs.unfinished().exists():
        still_run()
        time.sleep(0.1)
    speed = rate(jobs)
    jobs.delete()
    return speed


def result_of(callback: QuerySet[Job], still_run: Callable[[], None]) -> str:
    """Wait until the callback of a batch has run. Returns its result."""
    while not (job := callback.filter(status="completed").first()):
        still_run()
        time.sleep(0.1)
    return str(job.result)


def workers_in_errors(jobs: QuerySet[Job]) -> set[str]:
    """The names of the workers whose attempts have failed."""
    return {error["worker"] for errors in jobs.values_list("errors", flat=True) for error in errors}


def in_years(paid: dict[str, str]) -> str:
    """A text with the amount that was paid in each year."""
    return ", ".join(f"{year} ${total}" for year, total in paid.items())


def by_status(jobs: QuerySet[Job]) -> dict[str, int]:
    """The number of jobs of each status."""
    return dict(jobs.values_list("status").annotate(jobs=Count("pk")))
