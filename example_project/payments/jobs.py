"""The tasks of the shop, which a worker runs."""

import random
import time

from django.db import OperationalError, transaction
from django.db.models import Count, Sum

from django_skipqueue import JobContext, by, job, limit, periodic, unique_by
from django_skipqueue.values.backoff import constant

from .models import BlockedAddress, EmailDelivery, Payment, StatementLine
from .receipts import receipt_email


class AddressBlocked(Exception):
    """The shop does not send mail to this address, because earlier mail came back from it."""


@job(queue_name="emails", max_attempts=5, backoff=constant(1), retry_on=(OSError, OperationalError), timeout=60)
def send_receipt(payment_id: int) -> str:
    """E-mail the receipt of a payment, once, and return the address.

    The mail is sent inside the transaction that stores the delivery. If the job runs again after a success, or twice at
    once, it finds the stored delivery and sends nothing. If the mail server refuses the mail (an error of `smtplib` is
    an `OSError`), nothing is stored, and the job is retried.

    One gap remains: a crash after the mail server has accepted the mail and before the COMMIT. Then the receipt is sent
    twice, with the same Message-ID. To commit first and send afterwards could leave some receipts unsent for ever.
    """
    payment = Payment.objects.get(pk=payment_id)
    refuse_blocked(payment.email)
    with transaction.atomic():
        _, is_first = EmailDelivery.objects.get_or_create(
            payment=payment, email_type=EmailDelivery.Type.RECEIPT, defaults={"address": payment.email}
        )
        if is_first:
            receipt_email(payment).send()
    return payment.email


@job(takes_context=True)
def count_receipts(context: JobContext) -> str:
    """Count the sent and failed receipts of a batch after its last job. `manage.py demo` makes such a batch."""
    assert context.batch is not None  # noqa: S101 (a callback always has one)
    receipts = context.batch.progress()
    return f"{receipts.completed} sent, {receipts.failed} failed"


def refuse_blocked(address: str) -> None:
    """Raise `AddressBlocked` if the address is blocked. A retry does not help: a person must unblock the address."""
    blocked = BlockedAddress.objects.filter(address__iexact=address).first()
    if blocked:
        raise AddressBlocked(f"{address} is blocked: {blocked.reason}")


@job(sequence=by("email"))
def write_statement(email: str, payment_id: int) -> str:
    """Add a payment to the statement of its customer, with the total so far.

    Each line needs the line before it. So the jobs of a customer run one after the other, in the order of the payments;
    jobs of other customers run at the same time. After a failed job, the jobs of its customer wait until a person
    retries or discards it.
    """
    payment = Payment.objects.get(pk=payment_id)
    lines = StatementLine.objects.filter(payment__email=email)
    if not lines.filter(payment=payment).exists():
        last = lines.order_by("pk").last()
        StatementLine.objects.create(payment=payment, total_paid=(last.total_paid if last else 0) + payment.total)
    return f"{email} has paid ${lines.get(payment=payment).total_paid}"


@job(queue_name="reports", unique=unique_by("email"), on_conflict="replace")
def summarize_customer(email: str) -> str:
    """Say what a customer has bought, once after several payments: each call replaces and delays the waiting job."""
    bought = Payment.objects.filter(email=email).aggregate(number=Count("pk"), total=Sum("total"))
    return f"{email}: {bought['number']} payments, ${bought['total'] or 0:,.2f}"


@periodic("0 9 * * mon-fri", timezone="Europe/Berlin")
@job(queue_name="reports")
def daily_summary() -> str:
    """Say what the shop has sold, every working day at nine."""
    sold = Payment.objects.aggregate(number=Count("pk"), total=Sum("total"))
    sent = EmailDelivery.objects.filter(email_type=EmailDelivery.Type.RECEIPT).count()
    return f"{sold['number']} payments, ${sold['total'] or 0:,.2f}, {sent} receipts sent"


@job
def do_nothing() -> None:
    """Do nothing, so that a run shows the time that the queue itself takes."""


# Other tasks of an open shop, which `manage.py serve` runs for some minutes


@job(queue_name="reports", takes_context=True)
def print_catalogue(context: JobContext, pages: int) -> str:
    """Run for some seconds, and show as progress how many pages are printed."""
    for page in range(1, pages + 1):
        time.sleep(0.5)
        context.progress(page / pages, f"{page} of {pages} pages")
    return f"{pages} pages"


@job(max_attempts=4, backoff=constant(5), retry_on=(ConnectionError,))
def fetch_exchange_rates(currency: str) -> str:
    """Fail about every second time, as if the bank's server was often down."""
    if random.random() < 0.5:  # noqa: S311
        raise ConnectionError(f"The bank does not answer for {currency}.")
    return f"{currency} 1.08"


@job(concurrency=limit(2, by="account"))
def report_to_bank(account: str, payment_id: int) -> str:
    """Report a payment to the bank, which accepts two messages of an account at the same time, and refuses a third."""
    time.sleep(2)
    return f"{Payment.objects.get(pk=payment_id).reference} is known to account {account}"


@job
def ask_for_review(payment_id: int) -> str:
    """Write to a customer, some time after the payment."""
    return f"Asked {Payment.objects.get(pk=payment_id).customer_name}."
