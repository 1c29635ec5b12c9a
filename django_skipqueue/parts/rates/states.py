"""Rates as operators see them: the rate of a key, the tokens that are there now, and the rates of queues."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminTextInputWidget
from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _

from ...console.admin.queue_forms import SettingForm
from ...console.parts import QueueOption
from ...exceptions import InvalidOption
from ...models import Job, Queue
from ...models.expressions import MINUS_PRIORITY
from ...queue.store import Store
from ...values.settings import MOST_A_SECOND, burst_of, interval_of, rate_text
from ..keyed.sql import key_of, queues_with
from ..keyed.states import KeyState
from .admit import blocked_rates
from .now import RateNow, rate_keys_now
from .queues import rate_columns_of


@dataclass(frozen=True)
class RateState(KeyState[RateNow]):
    @property
    def rate(self) -> str | None:
        """The rate, such as "50/s"; `None`: any number of jobs."""
        return None if self.now.interval is None else rate_text(self.now.interval)

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.masked,
            "kind": "rate",
            "rate": self.rate,
            "burst": self.now.burst,
            "tokens": self.now.tokens,
            "waiting": {"count": self.waiting.shown, "or_more": self.waiting.is_capped},
            "due_in_seconds": self.now.due_in,
            "oldest_seconds": self.oldest,
            "next_job": self.now.next_id,
        }


def rate_states(store: Store, *, most: int) -> list[RateState]:
    """At most `most` keys of rates with waiting jobs, in alphabetical order."""
    return rate_states_of(store, waiting_rate_keys(store, limit=most))


def waiting_rate_keys(store: Store, *, after: str = "", limit: int) -> list[str]:
    """Keys of rates with waiting jobs, alphabetically after `after`."""
    return list(blocked_rates(store, after=after, limit=limit))


def rate_states_of(store: Store, keys: Iterable[str]) -> list[RateState]:
    """These keys in their order, as far as they have waiting jobs."""
    return [RateState(each) for each in rate_keys_now(store, list(keys))]


def waiting_for_a_token(key: str) -> "QuerySet[Job]":
    """The jobs that wait for a token of this key, the next one first. Index: rate_waiting."""
    return Job.objects.filter(gate="rate", rate_key=key).order_by(MINUS_PRIORITY, "run_after", "id")


def pace_of(rate_key: str, interval: float | None, burst: int | None) -> tuple[float, int] | None:
    """The interval and the burst of a key, by the columns of one of its jobs; `None`: any number of jobs."""
    name = rate_key.removeprefix(key_of(""))
    changed = None if name == rate_key else RATES.changed_in_row(name)
    if changed is not None:
        return (changed, burst_of(None, changed)) if changed else None
    return None if interval is None else (interval, burst or 1)


class RateForm(SettingForm):
    choice, typed = "rate", "own"
    any_number, this_value = _("any number of jobs"), _("this one:")

    rate = forms.ChoiceField(label=_("Rate"))
    own = forms.CharField(
        label=_("Jobs in a time"),
        help_text=_("Only for a rate that is not in the list: 50/s, 100/m, 10/h, 1/d or 3/10s."),
        max_length=20,
        required=False,
        widget=AdminTextInputWidget,
    )

    @classmethod
    def as_typed(cls, value: float | str) -> str:
        return value if isinstance(value, str) else rate_text(value)

    def problem(self, typed: str) -> Any:
        try:
            interval_of(typed)
        except InvalidOption:
            wrong = _("A number of jobs and a time, such as 50/s, 100/m or 3/10s; at most %(most)s in a second.")
            return wrong % {"most": f"{MOST_A_SECOND:,}"}
        return ""


RATES = QueueOption(
    name="start-rate",
    column="rate_interval",
    names=lambda: queues_with("rate"),
    by_settings=lambda name: (rate_columns_of(name).get("rate_key"), rate_columns_of(name).get("rate_interval")),
    form=RateForm,
    change=Queue.rate,
    follow_settings=Queue.rate_by_settings,
    label=_("rate limit"),
    page="rate",
    button=_("Rate"),
    button_in_full=_("Change the rate of the queue %(queue)s"),
    title=_("Change the rate of the queue “%(queue)s”?"),
    heading=_("Change the rate"),
    explanation=_(
        "So many of its jobs start in a time, over all workers; the others wait. Jobs that run are left alone, and "
        "those that are queued wait again."
    ),
    without=_('Its jobs can be given a rate once SKIPQUEUE["QUEUES"] has one for the queue, also None.'),
    changed=_("Jobs of the queue “%(queue)s” that may start: %(value)s."),
    follows_settings=_("The rate of the queue “%(queue)s” is that of the settings again."),
)
