"""The dashboard as its template shows it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.http import urlencode

from ....queue.store import Store
from ...durations import span
from ...parts import PartSection
from ...queues_and_workers import LONGEST_NAME
from .cards import Card, cards
from .sections import Section, sections
from .situation import RANGES, Range, Situation, range_of


@dataclass(frozen=True)
class Dashboard:
    situation: Situation
    cards: list[tuple[Card, bool]]
    """Each with whether its link can be followed."""
    sections: list[tuple[Section | PartSection, Any]]
    seconds: float
    """That it took to gather all of it."""

    @classmethod
    def of(cls, query: Mapping[str, str], may: Callable[[str], bool]) -> "Dashboard":
        """Gather what the address asks for: `range=6h`, `queue=emails`.

        `may`: whether the user has a permission.
        """
        started = time.perf_counter()
        queue_name = query.get("queue", "").replace("\0", "")[:LONGEST_NAME]
        situation = Situation.of(Store.default(), range_of(query.get("range")), queue_name)
        shown = [(card, may(card.permission)) for card in cards(situation)]
        filled = [(section, section.content(situation)) for section in sections()]
        return cls(situation, shown, filled, time.perf_counter() - started)

    @property
    def ranges(self) -> list[tuple[Range, str, bool]]:
        return [
            (each, self._address(range=each.slug, queue=self.queue_name), each is self.situation.range)
            for each in RANGES
        ]

    @property
    def queue_name(self) -> str:
        """The only queue that is shown; empty: all are."""
        return self.situation.queue_name

    @property
    def queue_names(self) -> list[str]:
        names = {queue.name for queue in self.situation.all_queues if len(queue.name) <= LONGEST_NAME}
        return sorted(names | ({self.queue_name} if self.queue_name else set()))

    @property
    def all_queues_address(self) -> str:
        return self._address(range=self.situation.range.slug)

    @property
    def took(self) -> str:
        return span(self.seconds)

    def _address(self, **query: str) -> str:
        return f"?{urlencode({name: value for name, value in query.items() if value})}"
