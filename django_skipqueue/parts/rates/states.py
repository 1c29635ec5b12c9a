"""What operators see of rate limits: the rate of a key, its tokens now, and the rates of queues.

Each statement reads a key by a few index lookups. `parts.rates.admit` explains buckets, which jobs wait for a token,
and which rate a key has.
"""

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
from ...queue.fragments import joined
from ...queue.store import Store
from ...values.fact import Fact
from ...values.settings import MOST_A_SECOND, burst_of, interval_of, rate_text
from ..keyed.sql import indented, key_of, queues_with
from ..keyed.states import KeyNow, KeyState, read_keys
from .admit import RATED, WAITS_FOR_RATE, blocked_rates
from .queues import rate_columns_of

# Sent by pages, commands. Returns one row for each of these keys that has waiting jobs:
# - the key;
# - the next job: its id, task and arguments;
# - the rate: the seconds for each job and the burst; NULL means unlimited;
# - the free tokens: adding 0.000001 makes up for rounding errors of the division, which could cost a whole token;
# - the number of waiting jobs, counted up to `limit`;
# - the seconds until the next job is admitted; NULL means that no supervisor has scanned the key yet;
# - the seconds since the first of the counted jobs was due.
# Index: rate_waiting, rate_queued and the primary key of the buckets, once for each key; for the key of a queue the
# primary key of queues.
RATE_KEYS_NOW = joined(
    """
SELECT
    key.name, head.id, head.task, head.args::text, head.kwargs::text,
    rated.seconds, rated.burst,
    CASE
        WHEN rated.burst IS NOT NULL
        THEN GREATEST(0, floor(
            rated.burst + 0.000001 - GREATEST(
                COALESCE(extract(epoch FROM rate.full_at - statement_timestamp())::float8 / rated.seconds, 0),
                queued.number
            )
        ))::integer
    END,
    waiting.number,
    date_part('epoch', rate.due_at - statement_timestamp()),
    date_part('epoch', statement_timestamp() - waiting.since)
FROM
    unnest((SELECT %(keys)s::text[])) WITH ORDINALITY AS key (name, place)
    LEFT JOIN skipqueue_rate AS rate ON rate.key = key.name
    CROSS JOIN LATERAL (
        SELECT id, task, args, kwargs, rate_interval, rate_burst
        FROM skipqueue_job
        WHERE
            {waits}
            AND rate_key = key.name
        ORDER BY (-priority), run_after, id
        LIMIT 1
    ) AS head
    {rated}
    CROSS JOIN LATERAL (
        SELECT count(*) AS number, min(run_after) AS since
        FROM (
            SELECT run_after
            FROM skipqueue_job
            WHERE
                {waits_within}
                AND rate_key = key.name
            ORDER BY (-priority), run_after, id
            LIMIT %(limit)s
        ) AS job
    ) AS waiting
ORDER BY key.place
""",
    rated=indented(RATED, 4),
    waits=indented(WAITS_FOR_RATE, 12),
    waits_within=indented(WAITS_FOR_RATE, 16),
)


@dataclass(frozen=True)
class RateNow(KeyNow):
    interval: float | None
    """Seconds from one start to the next; `None` means unlimited, because somebody has removed the queue's rate."""
    burst: int | None
    tokens: int | None
    """How many jobs may start now; `None` means unlimited."""
    due_in: float | None
    """Seconds until the next job is admitted, negative if it is late; `None` if no supervisor has read the key yet."""


@dataclass(frozen=True)
class RateState(KeyState[RateNow]):
    @property
    def rate(self) -> str | None:
        """The rate, such as "50/s"; `None` means unlimited."""
        return None if self.current.interval is None else rate_text(self.current.interval)


RATE_OF_KEY: tuple[Fact[RateState], ...] = (
    Fact("key", _("key"), lambda state: state.masked),
    Fact("kind", "", lambda _state: "rate"),
    Fact("rate", _("rate"), lambda state: state.rate),
    Fact("burst", "", lambda state: state.current.burst),
    Fact("held", _("tokens now"), lambda state: state.current.tokens, "jobs", field="tokens"),
    Fact("waiting", _("jobs wait"), lambda state: state.waiting, "jobs"),
    Fact("due", _("next admitted"), lambda state: state.current.due_in, "seconds", field="due_in_seconds"),
    Fact("oldest", _("oldest job"), lambda state: state.oldest, "seconds", field="oldest_seconds"),
    Fact("next_job", "", lambda state: state.current.next_id),
)
"""The facts about one rate key."""


def rate_states(store: Store, *, most: int) -> list[RateState]:
    """Return the states of at most `most` rate keys with waiting jobs, in alphabetical order."""
    return rate_states_of(store, waiting_rate_keys(store, limit=most))


def waiting_rate_keys(store: Store, *, after: str = "", limit: int) -> list[str]:
    """Return rate keys with waiting jobs, in alphabetical order after `after`."""
    return list(blocked_rates(store, after=after, limit=limit))


def rate_states_of(store: Store, keys: Iterable[str]) -> list[RateState]:
    """Return the state of each of these keys that has waiting jobs, in the given order."""
    columns = ("interval", "burst", "tokens", "waiting", "due_in", "oldest")
    return [RateState(current) for current in read_keys(store, RATE_KEYS_NOW, keys, RateNow, *columns)]


def waiting_for_a_token(key: str) -> "QuerySet[Job]":
    """Return the jobs that wait for a token of this key, the next job first. Index: rate_waiting."""
    return Job.objects.filter(gate="rate", rate_key=key).order_by(MINUS_PRIORITY, "run_after", "id")


def pace_of(rate_key: str, interval: float | None, burst: int | None) -> tuple[float, int] | None:
    """Return a key's interval and burst; `None` means unlimited. `interval`, `burst`: columns of one of its jobs."""
    queue_name = rate_key.removeprefix(key_of(""))
    changed = None if queue_name == rate_key else RATES.changed_in_row(queue_name)
    if changed is not None:
        return (changed, burst_of(None, changed)) if changed else None
    return None if interval is None else (interval, burst or 1)


class RateForm(SettingForm):
    choice, typed = "rate", "own"
    any_number, this_value = _("any number of jobs"), _("this rate:")

    rate = forms.ChoiceField(label=_("Rate"))
    own = forms.CharField(
        label=_("Jobs per time"),
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
            message = _("Enter a number of jobs per time, such as 50/s, 100/m or 3/10s; at most %(most)s per second.")
            return message % {"most": f"{MOST_A_SECOND:,}"}
        return ""


RATES = QueueOption(
    name="start-rate",
    column="rate_interval",
    queues_in_settings=lambda: queues_with("rate"),
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
        "At most this number of its jobs start in a time, over all workers; the others wait. Jobs that run are left "
        "alone, and those that are queued wait again."
    ),
    unset_text=_('To change its rate, first give the queue a rate in SKIPQUEUE["QUEUES"]; it may be None.'),
    changed_message=_("Jobs of the queue “%(queue)s” that may start: %(value)s."),
    follows_settings_message=_("The queue “%(queue)s” uses the rate from the settings again."),
)
