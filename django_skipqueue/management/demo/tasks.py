"""The tasks of the demonstration, and how often each is deferred.

Invariant: importing this module registers nothing. Only the worker of the demonstration calls `register`: no other
process may claim these jobs, nor list these tasks.
"""

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

from ...admission.options import by, limit
from ...backoff import constant
from ...batches.call import TaskCall
from ...models import FINISHED
from ...periodic.decorator import periodic
from ...tasks.given import checked
from ...tasks.options import RunOptions
from ...tasks.registry import registry
from ...tasks.task import Task
from ...values.records import EncodedCall, JobSpec
from ...values.served import DEMO_PREFIX

TASK_PREFIX = "demo."

RANDOM = random.SystemRandom()

RETENTION = json.dumps({status.value: timedelta(days=1).total_seconds() for status in FINISHED})


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


def push_to_crm(account: str, order_id: int) -> str:
    """Take some seconds: a second job of the account has to wait."""
    time.sleep(RANDOM.uniform(2, 6))
    return f"order {order_id} pushed to {account}"


def write_statement(customer_id: int, month: str) -> str:
    """Fail for good now and then, so that the customer's further statements wait for an operator."""
    time.sleep(RANDOM.uniform(0.1, 1))
    if RANDOM.random() < 0.05:
        raise ValueError(f"the ledger of customer {customer_id} does not balance")
    return f"statement-{customer_id}-{month}.pdf"


def publish_album(album_id: int) -> str:
    """Run after the photos of the album."""
    time.sleep(RANDOM.uniform(0.1, 0.4))
    return f"https://photos.example.com/{album_id}"


def reserve_stock(order_id: int) -> str:
    """Be the first step for an order."""
    time.sleep(RANDOM.uniform(0.5, 1.5))
    return f"shelf {order_id % 40}"


def print_label(order_id: int, parcel: int) -> str:
    """Run once for each parcel of the order."""
    time.sleep(RANDOM.uniform(0.5, 3))
    return f"label-{order_id}-{parcel}.pdf"


def hand_over(order_id: int) -> str:
    """Be the last step for an order."""
    time.sleep(RANDOM.uniform(0.2, 0.8))
    return f"the parcels of order {order_id} are on their way"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A task of the demonstration."""

    function: Callable[..., Any]
    queue: str
    share: int = 0
    """Of a hundred jobs outside of batches and chains."""
    call: Callable[[int], dict[str, Any]]
    """The arguments of the job with this number."""
    max_attempts: int = 3
    longest_delay: int = 0
    """Seconds; each job is due at a random time within them."""
    options: RunOptions = field(default_factory=RunOptions)
    """Further options of the task."""

    @cached_property
    def task(self) -> Task[..., Any]:
        """The task, not registered."""
        given = checked({"queue_name": self.queue_name, "backoff": constant(4), **self.options})
        return Task(self.function, name=self.name, options=given.options, policy=given.policy, takes_context=False)

    def spec(self) -> JobSpec:
        """The columns that its jobs share."""
        delay = timedelta(seconds=RANDOM.uniform(0, self.longest_delay)) if self.longest_delay else None
        spec = JobSpec(self.name, queue_name=self.queue_name, max_attempts=self.max_attempts, run_after=delay)
        return spec._replace(retention=RETENTION)

    def encoded(self, number: int, **others: Any) -> EncodedCall:
        """The job with this number, with these arguments in place of its own."""
        return self.task.encoded((), self.call(number) | others)

    def s(self, number: int, **others: Any) -> TaskCall:
        """The same for a batch or a chain."""
        return TaskCall(self.spec(), self.encoded(number, **others))

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"{TASK_PREFIX}{self.function.__name__}"

    @property
    def queue_name(self) -> str:
        """The name of the queue."""
        return f"{DEMO_PREFIX}{self.queue}"


SYNC_CUSTOMER = Kind(
    function=sync_customer, queue="payments", share=3, call=lambda n: {"customer_id": n}, max_attempts=2
)
RESIZE_PHOTO = Kind(function=resize_photo, queue="media", share=14, call=lambda n: {"photo_id": n, "width": 1200})
PUBLISH_ALBUM = Kind(function=publish_album, queue="media", call=lambda n: {"album_id": n})
RESERVE_STOCK = Kind(function=reserve_stock, queue="shipping", call=lambda n: {"order_id": n})
PRINT_LABEL = Kind(function=print_label, queue="shipping", call=lambda n: {"order_id": n, "parcel": 1})
HAND_OVER = Kind(function=hand_over, queue="shipping", call=lambda n: {"order_id": n})

KINDS = (
    Kind(
        function=charge_card,
        queue="payments",
        share=12,
        call=lambda n: {"order_id": n, "amount": f"{n % 90 + 9}.90", "card_token": f"tok-{n:08}"},
        max_attempts=6,
    ),
    SYNC_CUSTOMER,
    Kind(
        function=write_statement,
        queue="payments",
        share=4,
        call=lambda n: {"customer_id": n % 7, "month": "2026-11"},
        max_attempts=1,
        options={"sequence": by("customer_id")},
    ),
    Kind(
        function=send_receipt,
        queue="mail",
        share=55,
        call=lambda n: {"order_id": n, "email": f"customer-{n % 97}@example.com"},
    ),
    Kind(function=remind, queue="mail", share=5, call=lambda n: {"order_id": n}, longest_delay=120),
    RESERVE_STOCK,
    PRINT_LABEL,
    HAND_OVER,
    RESIZE_PHOTO,
    PUBLISH_ALBUM,
    Kind(
        function=push_to_crm,
        queue="crm",
        share=6,
        call=lambda n: {"account": ("hamburg", "lisbon")[n % 2], "order_id": n},
        options={"concurrency": limit(1, by="account")},
    ),
    Kind(function=build_report, queue="reports", share=1, call=lambda n: {"month": f"2026-{n % 12 + 1:02}"}),
)
"""Their queues are served in this order."""

REPORT_INTERVAL = timedelta(seconds=20)

QUEUE_NAMES = tuple(dict.fromkeys(kind.queue_name for kind in KINDS))


def register() -> None:
    """Register the tasks, and a schedule, in this process."""
    for kind in KINDS:
        registry.register(kind.task)
        if kind.function is build_report:
            periodic(REPORT_INTERVAL, name=f"{kind.name} of the day", month="today", overlap="skip")(kind.task)
