"""Receipts as e-mails."""

from email.utils import quote

from django.core.mail import EmailMessage
from django.template.loader import render_to_string

from .models import Payment


def receipt_email(payment: Payment) -> EmailMessage:
    """The receipt as an e-mail. Its Message-ID is always the same, so that a mail server can recognise a repetition."""
    return EmailMessage(
        subject=f"Your receipt {payment.reference}",
        body=render_to_string("payments/receipt.txt", {"payment": payment, "lines": payment.lines.all()}),
        to=[f'"{quote(payment.customer_name)}" <{payment.email}>'],
        headers={"Message-ID": f"<receipt-{payment.reference}@chinook.example>"},
    )
