"""The figures of the demo, counted from the mails in the mailbox and the rows of its jobs."""

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Self

from django.db.models import Count, Max, Min, QuerySet, Sum

from django_skipqueue.models import Job

from .mailbox import Mailbox, amount_paid
from .models import EmailDelivery, Payment

CHINOOK_TOTAL = Decimal("2328.60")
REPORT = """
  receipts sent    {sent:5}  {sent_amount:>10}   counted from the mails in the mailbox
    after a retry  {retried:5}               the mail server was busy at the first attempt
  failed           {failed:5}  {failed_amount:>10}
{failures}
  together         {together:5}  {together_amount:>10}   of {payments} payments, {payments_amount}

  Speed   {speed:,.0f} empty jobs a second on one worker process; the receipts took {duration:.1f} s, retries included
  Mails   {mailbox}, for example {example}
  Log     {log}
"""
FAILURE = "    {reference:12}         {amount:>10}   {reason}"


@dataclass(frozen=True)
class Failure:
    """A receipt that was not sent, and why."""

    reference: str
    amount: Decimal
    reason: str


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The figures of one demo."""

    payments: int
    payments_amount: Decimal
    sent: int
    sent_amount: Decimal
    sent_twice: list[str]
    remembered: int
    refused: int
    retried: int
    failures: list[Failure]
    unfinished: int
    duration: timedelta
    mailbox: Path

    @classmethod
    def of(cls, jobs: QuerySet[Job], mailbox: Mailbox) -> Self:
        """Count the figures. `jobs` are the jobs of the demo, one for each payment."""
        receipts = list(mailbox.receipts())
        completed = jobs.filter(status="completed")
        return cls(
            payments=Payment.objects.count(),
            payments_amount=Payment.objects.aggregate(amount=Sum("total"))["amount"],
            sent=len(receipts),
            sent_amount=sum((amount_paid(receipt) for receipt in receipts), Decimal(0)),
            sent_twice=[name for name, copies in Counter(str(r["Message-ID"]) for r in receipts).items() if copies > 1],
            remembered=EmailDelivery.objects.count(),
            refused=mailbox.refusals(),
            retried=completed.filter(attempts__gt=1).count(),
            failures=[failure(job) for job in jobs.filter(status="failed").order_by("pk")],
            unfinished=jobs.filter(status__in=["scheduled", "queued", "running"]).count(),
            duration=jobs.aggregate(time=Max("finished_at") - Min("enqueued_at"))["time"],
            mailbox=mailbox.folder,
        )

    @property
    def failed_amount(self) -> Decimal:
        """The amount that customers without a receipt have paid."""
        return sum((failure.amount for failure in self.failures), Decimal(0))

    def report(self, *, log: Path, speed: float) -> str:
        """A text with the figures. `speed` is the number of empty jobs a second."""
        return REPORT.format(
            sent=self.sent,
            sent_amount=dollars(self.sent_amount),
            retried=self.retried,
            failed=len(self.failures),
            failed_amount=dollars(self.failed_amount),
            failures="\n".join(
                FAILURE.format(reference=failure.reference, amount=dollars(failure.amount), reason=failure.reason)
                for failure in self.failures
            ),
            together=self.sent + len(self.failures),
            together_amount=dollars(self.sent_amount + self.failed_amount),
            payments=self.payments,
            payments_amount=dollars(self.payments_amount),
            speed=speed,
            duration=self.duration.total_seconds(),
            log=short(log),
            mailbox=short(self.mailbox),
            example=short(self.mailbox / "receipt-0001.eml"),
        )

    def problems(self) -> list[str]:
        """A sentence for each figure that is wrong."""
        checks = {
            f"{self.unfinished} jobs are not finished.": not self.unfinished,
            "Sent and failed do not make up all payments.": self.sent + len(self.failures) == self.payments,
            f"The payments are not the {CHINOOK_TOTAL} of the invoices.": self.payments_amount == CHINOOK_TOTAL,
            "The amounts do not add up.": self.sent_amount + self.failed_amount == self.payments_amount,
            f"Sent more than once: {', '.join(self.sent_twice)}.": not self.sent_twice,
            "The shop does not remember what it sent.": self.remembered == self.sent,
            "Not every refused mail was retried.": self.refused == self.retried,
        }
        return [sentence for sentence, holds in checks.items() if not holds]


def failure(job: Job) -> Failure:
    """The reason for which this job failed."""
    payment = Payment.objects.get(pk=job.kwargs["payment_id"])
    return Failure(payment.reference, payment.total, job.last_error)


def rate(jobs: QuerySet[Job]) -> float:
    """The jobs finished a second, from the start of the first job to the end of the last."""
    times = jobs.aggregate(jobs=Count("pk"), time=Max("finished_at") - Min("started_at"))
    return times["jobs"] / times["time"].total_seconds() if times["jobs"] else 0.0


def dollars(amount: Decimal) -> str:
    """An amount as `$2,328.60`."""
    return f"${amount:,.2f}"


def short(path: Path) -> str:
    """The path relative to the current folder, if it is inside."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
