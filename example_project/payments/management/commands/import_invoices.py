"""`manage.py import_invoices` imports the invoices of the Chinook sample shop as payments. It may run again."""

import csv
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand
from django.db import transaction

from payments.models import Payment, PaymentLine

CHINOOK = Path(__file__).resolve().parents[2] / "data" / "chinook"


class Command(BaseCommand):
    """Import the invoices that are missing."""

    help = "Import the invoices of the Chinook sample shop as payments; those that are there already are left alone."

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        """Import the invoices, and say how many are new."""
        before = Payment.objects.count()
        Payment.objects.bulk_create(payments(), ignore_conflicts=True)
        ids = dict(Payment.objects.values_list("reference", "pk"))
        PaymentLine.objects.bulk_create(lines(ids), ignore_conflicts=True)
        self.stdout.write(f"{Payment.objects.count() - before} invoices imported.")


def payments() -> Iterator[Payment]:
    """Yield one payment for each invoice."""
    for row in rows("invoices.csv"):
        yield Payment(
            reference=reference(row["invoice_id"]),
            customer_name=row["customer_name"],
            email=row["email"],
            city=row["billing_city"],
            country=row["billing_country"],
            paid_on=row["invoice_date"],
            total=Decimal(row["total"]),
        )


def lines(ids: dict[str, int]) -> Iterator[PaymentLine]:
    """Yield the lines of all invoices, numbered within each invoice. `ids` has the id of each payment by reference."""
    positions: dict[str, int] = {}
    for row in rows("invoice_lines.csv"):
        invoice = row["invoice_id"]
        positions[invoice] = positions.get(invoice, 0) + 1
        yield PaymentLine(
            payment_id=ids[reference(invoice)],
            position=positions[invoice],
            track=row["track"],
            artist=row["artist"],
            unit_price=Decimal(row["unit_price"]),
            quantity=int(row["quantity"]),
        )


def rows(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of one of the data files."""
    with (CHINOOK / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def reference(invoice_id: str) -> str:
    """The reference of the payment for an invoice: invoice 7 becomes payment 0007."""
    return invoice_id.zfill(4)
