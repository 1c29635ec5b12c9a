"""The tasks of the demonstration, and how often each is deferred.

Invariant: importing this module registers nothing. Only the worker of the demonstration calls `register`: no other
process may claim these jobs, nor list these tasks.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ...backoff import constant
from ...periodic.decorator import periodic
from ...tasks.decorator import job
from ...values.served import DEMO_PREFIX

TASK_PREFIX = "demo."

RANDOM = random.SystemRandom()


def send_receipt(order_id: int, email: str) -> str:
    """Take a moment."""
    time.sleep(RANDOM.uniform(0.01, 0.2))
    return f"receipt of order {order_id} sent to {email}"


def resize_photo(photo_id: int, width: int) -> dict[str, int]:
    """Take a second or two."""
    time.sleep(RANDOM.uniform(0.3, 2.5))
    return {"photo_id": photo_id, "width": width, "height": width * 2 // 3}


def build_report(month: str) -> str:
    """Take long."""
    time.sleep(RANDOM.uniform(5, 20))
    return f"report-{month}.pdf"


def charge_card(order_id: int, amount: str, card_token: str) -> dict[str, str]:
    """Fail now and then, and succeed at a later attempt."""
    time.sleep(RANDOM.uniform(0.1, 0.6))
    if RANDOM.random() < 0.4:
        raise ConnectionError(f"the bank did not answer for order {order_id}")
    return {"charged": amount, "card": card_token[-4:]}


def sync_customer(customer_id: int) -> None:
    """Fail at every attempt."""
    customer = {"id": customer_id, "name": "Ada"}
    raise KeyError(f"no address in {sorted(customer)}")


def remind(order_id: int) -> str:
    """Be due later."""
    time.sleep(RANDOM.uniform(0.01, 0.1))
    return f"reminded of order {order_id}"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A task of the demonstration."""

    function: Callable[..., Any]
    queue: str
    share: int
    """Of a hundred jobs."""
    call: Callable[[int], dict[str, Any]]
    """The arguments of the job with this number."""
    max_attempts: int = 3
    longest_delay: int = 0
    """Seconds; each job is due at a random time within them."""

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"{TASK_PREFIX}{self.function.__name__}"

    @property
    def queue_name(self) -> str:
        """The name of the queue."""
        return f"{DEMO_PREFIX}{self.queue}"


KINDS = (
    Kind(
        function=charge_card,
        queue="payments",
        share=12,
        call=lambda n: {"order_id": n, "amount": f"{n % 90 + 9}.90", "card_token": f"tok-{n:08}"},
        max_attempts=6,
    ),
    Kind(function=sync_customer, queue="payments", share=3, call=lambda n: {"customer_id": n}, max_attempts=2),
    Kind(
        function=send_receipt,
        queue="mail",
        share=60,
        call=lambda n: {"order_id": n, "email": f"customer-{n % 97}@example.com"},
    ),
    Kind(function=remind, queue="mail", share=5, call=lambda n: {"order_id": n}, longest_delay=120),
    Kind(function=build_report, queue="reports", share=2, call=lambda n: {"month": f"2026-{n % 12 + 1:02}"}),
    Kind(function=resize_photo, queue="media", share=18, call=lambda n: {"photo_id": n, "width": 1200}),
)
"""Their queues are served in this order."""

REPORT_INTERVAL = timedelta(seconds=20)

QUEUE_NAMES = tuple(dict.fromkeys(kind.queue_name for kind in KINDS))


def register() -> None:
    """Register the tasks, and a schedule, in this process."""
    for kind in KINDS:
        task = job(name=kind.name, queue_name=kind.queue_name, backoff=constant(4))(kind.function)
        if kind.function is build_report:
            periodic(REPORT_INTERVAL, name=f"{kind.name} of the day", month="today", overlap="skip")(task)
