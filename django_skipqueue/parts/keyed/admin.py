"""The admin page of limits: the keys of concurrency limits, sequences and rate limits for which jobs wait.

A key that contains a secret never appears in an alphabetical list: its position would reveal the secret, because a user
could type many texts and compare the key with each of them.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from django.http import HttpRequest, HttpResponse
from django.utils.http import urlencode
from django.utils.translation import gettext

from ...console.admin.ui.addresses import carrying
from ...console.admin.ui.views import refreshing
from ...console.arguments import redacted
from ...console.parts import PartPage
from ...console.queues_and_workers import MAX_LINKED_NAME_LENGTH
from ...console.search import is_id
from ...models import Job
from ...queue.store import Store
from .console import KeyCard, tables
from .states import KeyState

if TYPE_CHECKING:
    from ...console.admin.jobs.job_admin import JobAdmin


State = TypeVar("State", bound=KeyState[Any])

FILLING_SECONDS = 2.0
"""The longest time for which a list is filled if many keys are left out. It does not depend on the typed text."""


def unmasked_states(
    keys_after: Callable[[str], list[str]],
    states_of: Callable[[list[str]], Iterable[State]],
    *,
    most: int,
    text: str,
    after: str | None = None,
) -> list[State]:
    """Return at most `most` states of keys without a secret, in alphabetical order; fewer if time runs out.

    The list begins after the key `after`; if `after` is `None`, it begins with the key `text`.
    """
    deadline = time.monotonic() + FILLING_SECONDS
    from_text = [text] if text else []  # the list also has the key that is equal to the text
    keys = from_text + keys_after(text) if after is None else keys_after(after)
    states: list[State] = []
    while keys and time.monotonic() < deadline:
        states += [state for state in states_of(keys) if not state.is_masked]
        keys = keys_after(keys[-1]) if len(states) < most else []
    return states[:most]


@dataclass(frozen=True)
class KeysPage:
    """One page of the list of keys for which jobs wait.

    The URL of the next page contains the id of a job, not a key, because a key may contain a secret.
    """

    cards: list[KeyCard[Any]]
    text: str
    """The typed text with which the alphabetical lists begin."""
    after: int | None
    """The id of a job: the page begins after this job's key."""
    next_id: int | None
    """The id of a job: the next page begins after this job's key; `None` if there is no next page."""

    @classmethod
    def of(cls, store: Store, query: Mapping[str, str]) -> "KeysPage":
        text = query.get("from", "").replace("\0", "")[:MAX_LINKED_NAME_LENGTH].strip()
        after, key = _start(query.get("after", ""))
        cards_of_parts = [table.cards(store, text, key) for table in tables()]
        first = [card for cards in cards_of_parts for card in cards.first]
        listed = [card for cards in cards_of_parts for card in cards.listed]
        next_id = next((cards.next_id for cards in cards_of_parts if cards.next_id is not None), None)
        return cls([card for card in first + listed if card.states], text, after, next_id)

    @property
    def next(self) -> str:
        query: dict[str, Any] = {"from": self.text} if self.text else {}
        return "" if self.next_id is None else carrying(f"?{urlencode(query | {'after': self.next_id})}")


def _start(job_id: str) -> tuple[int, str] | tuple[None, None]:
    """Return the id and the key of this job; both `None` if there is no such job or key, or if the key has a secret."""
    job = Job.objects.filter(pk=job_id).first() if is_id(job_id) else None
    keys = [table.start(job) for table in tables() if table.start] if job else []
    key = next(filter(None, keys), None)
    if job is None or key is None or redacted(job.task, job.args, job.kwargs).text(key) != key:
        return None, None
    return job.pk, key


@refreshing
def limits_view(admin: "JobAdmin", request: HttpRequest) -> HttpResponse:
    page = KeysPage.of(Store.default(), request.GET)
    return admin.show(request, "keyed/page.html", None, {"page": page}, title=gettext("Limits"))


def pages() -> tuple[PartPage, ...]:
    return (PartPage(name="limits", path="limits/", view=limits_view),)
