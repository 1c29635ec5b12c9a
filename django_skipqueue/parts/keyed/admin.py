"""The page `limits`: the keys for which jobs wait, as the parts whose jobs have keys show them.

Invariant: a key with a secret in it takes no place in an alphabetical list. Its place would reveal the secret, one
comparison with a typed text after the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.utils.http import urlencode
from django.utils.translation import gettext

from ...console.admin.ui.addresses import carrying
from ...console.admin.ui.views import refreshing
from ...console.arguments import redacted
from ...console.parts import PartPage
from ...console.queues_and_workers import LONGEST_NAME_OFFERED
from ...console.search import is_id
from ...models import Job
from ...queue.store import Store
from .console import Card, tables

if TYPE_CHECKING:
    from ...console.admin.jobs.job_admin import JobAdmin


SECONDS = 2.0
"""For how long a list is filled, if many keys are left out. The time does not depend on a typed text."""


@dataclass(frozen=True)
class KeysPage:
    """The keys from one on.

    The address of the next page names a job, not a key: a key may have a secret in it.
    """

    cards: list[Card[Any]]
    text: str
    """Where the alphabetical lists begin, as typed."""
    after: int | None
    """The job after whose key the page begins."""
    next_id: int | None
    """The job after whose key the next page begins; `None`: there is no next page."""

    @classmethod
    def of(cls, store: Store, query: Mapping[str, str]) -> "KeysPage":
        text = query.get("from", "").replace("\0", "")[:LONGEST_NAME_OFFERED].strip()
        after, key = _start(query.get("after", ""))
        found = [table.cards(store, text, key) for table in tables()]
        cards = [card for each in found for card in each.first] + [card for each in found for card in each.listed]
        next_id = next((each.next_id for each in found if each.next_id is not None), None)
        return cls([card for card in cards if card.states], text, after, next_id)

    @property
    def next(self) -> str:
        query: dict[str, Any] = {"from": self.text} if self.text else {}
        return "" if self.next_id is None else carrying(f"?{urlencode(query | {'after': self.next_id})}")


def _start(job_id: str) -> tuple[int, str] | tuple[None, None]:
    """The id and the key of this job; `None` twice if it is gone, begins no page, or a secret is in its key."""
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
