"""`manage.py customers`: keep the shop busy for some minutes, so that there is something to see in the admin."""

import random
import time
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand

from payments.forms import SHELF, PaymentForm
from payments.jobs import ask_for_review, fetch_exchange_rates, print_catalogue, report_to_bank
from payments.views import take_payment

NAMES = ("Ada Lovelace", "Grace Hopper", "Alan Turing", "Edsger Dijkstra", "Barbara Liskov")

PAUSE = 1.5
"""Seconds between two customers."""


class Command(BaseCommand):
    """Simulates customers, whose payments defer slow, flaky and scheduled jobs."""

    help = "Buy a track now and then, for some minutes; some jobs are slow, some fail, some are for later."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the option for how long customers come in."""
        parser.add_argument("--minutes", type=float, default=10)

    def handle(self, *args: Any, minutes: float, **options: Any) -> None:
        """Simulate one customer after the other until the time is over."""
        end = time.monotonic() + minutes * 60
        number = 0
        while time.monotonic() < end:
            come_in(number)
            number += 1
            time.sleep(PAUSE)


def come_in(number: int) -> None:
    """Simulate one customer: a payment and jobs."""
    name = NAMES[number % len(NAMES)]
    form = PaymentForm(
        {"customer_name": name, "email": f"{name.split()[0].lower()}@example.com", "track": number % len(SHELF)}
    )
    if form.is_valid():
        payment = take_payment(form)
        report_to_bank.defer(account="shop" if number % 5 else "festival", payment_id=payment.pk)
        ask_for_review.using(run_after=timedelta(seconds=30)).defer(payment_id=payment.pk)
    if number % 3 == 0:
        fetch_exchange_rates.defer(currency=random.choice(["EUR", "BRL", "CAD"]))  # noqa: S311
    if number % 8 == 1:
        print_catalogue.defer(pages=random.randint(10, 40))  # noqa: S311
