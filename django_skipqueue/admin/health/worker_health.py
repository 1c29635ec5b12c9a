"""The workers there are, and which of them can be counted on, by the database's clock. One query, of a few rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from django.db.models.functions import Now
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...models import Worker
from ..ui.durations import span

State = Literal["live", "late", "stale"]

STATES: dict[State, str | Promise] = {"live": _("live"), "late": _("late"), "stale": _("stale")}
"""The words for them."""

MOST = 1_000
"""Workers that are looked at."""


def state_after(age: timedelta) -> State:
    """Of a worker not heard of for so long: `late` after two missed heartbeats, `stale` when taken for dead."""
    interval = min(settings.heartbeat_interval, settings.worker_timeout / 4)
    if age >= timedelta(seconds=settings.worker_timeout):
        return "stale"
    return "late" if age >= timedelta(seconds=2.5 * interval) else "live"


@dataclass(frozen=True)
class Hand:
    """One worker process."""

    id: str
    name: str
    queues: tuple[str, ...]
    """Empty: it serves all."""
    concurrency: int
    age: timedelta
    """Since its last heartbeat."""

    @property
    def state(self) -> State:
        """Whether it can be counted on."""
        return state_after(self.age)

    @property
    def is_live(self) -> bool:
        """Whether it is not taken for dead."""
        return self.state != "stale"

    @property
    def age_in_words(self) -> str:
        """How long that is."""
        return span(self.age)

    def serves(self, queue_name: str) -> bool:
        """Whether it claims jobs of this queue."""
        return not self.queues or queue_name in self.queues


@dataclass(frozen=True)
class Workforce:
    """All workers, at one moment."""

    hands: tuple[Hand, ...]

    @classmethod
    def now(cls) -> "Workforce":
        """As the rows say this moment."""
        return cls(tuple(_hands()))

    @property
    def live(self) -> list[Hand]:
        """Those that are not taken for dead."""
        return [hand for hand in self.hands if hand.is_live]

    @property
    def silent(self) -> list[Hand]:
        """Those that are late or stale, the longest silent last."""
        return sorted((hand for hand in self.hands if hand.state != "live"), key=lambda hand: hand.age)

    def serving(self, queue_name: str) -> list[Hand]:
        """Those that claim jobs of this queue."""
        return [hand for hand in self.live if hand.serves(queue_name)]

    def get(self, worker_id: str) -> Hand | None:
        """The worker with this id."""
        return next((hand for hand in self.hands if hand.id == worker_id), None)


def _hands() -> Iterator[Hand]:
    rows = Worker.objects.annotate(now=Now()).order_by("-heartbeat_at")
    columns = ("id", "name", "queues", "concurrency", "heartbeat_at", "now")
    heartbeat: datetime
    now: datetime
    for worker_id, name, queues, concurrency, heartbeat, now in rows.values_list(*columns)[:MOST]:
        yield Hand(str(worker_id), name, tuple(map(str, queues)), concurrency, now - heartbeat)
