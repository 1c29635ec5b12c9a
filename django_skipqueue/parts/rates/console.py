"""What operators see of rate limits: keys, metrics, and why a job waits for a token."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db.models import F, Value
from django.db.models.lookups import LessThan
from django.utils.translation import gettext, ngettext

from ...console.counts import SCRAPED_KEYS, Count
from ...console.durations import roughly
from ...console.facts import as_json
from ...console.metrics.catalogue import Values, measured
from ...events.log_format import in_words
from ...models import Job, RateBucket
from ...models.expressions import MINUS_PRIORITY, Row
from ...queue.store import Store
from ...values.exposition import Metric
from ...values.part import later
from ...values.settings import rate_text
from ..keyed.console import KeyedConsole, KeyTable
from ..keyed.states import key_of_job
from .admit import blocked_rates, next_rate
from .states import RATE_OF_KEY, RATES, pace_of, rate_states, rate_states_of, waiting_for_a_token


@measured(
    "rates",
    Metric("skipqueue_waiting_rate_keys", "gauge", "Rate keys with waiting jobs, counted up to 500."),
    Metric(
        "skipqueue_rate_late_seconds",
        "gauge",
        "Seconds by which the next admission by a rate limit is late; normally below 1.",
    ),
)
def rates(store: Store) -> Iterator[Values]:
    yield {(): len(blocked_rates(store, limit=SCRAPED_KEYS))}
    yield {(): max(0.0, -(next_rate(store) or 0.0))}


def why_it_waits_for_its_rate(job: Job, now: datetime) -> str:
    """Explain why a job waits for its rate limit. Empty if the job has none, or waits at another gate."""
    if job.gate != "rate" or job.rate_key is None:
        return ""
    pace = pace_of(job.rate_key, job.rate_interval, job.rate_burst)
    if pace is None:
        return gettext("It will be admitted within a second or two, because its queue has no rate limit.")
    before = _jobs_before(job)
    values = {
        "rate": rate_text(pace[0]),
        "key": key_of_job(job, job.rate_key),
        "number": before,
        "span": roughly(timedelta(seconds=_seconds_until_token(job, pace, before.found, now))),
    }
    if not before.found:
        return gettext("It waits for the rate %(rate)s of “%(key)s”: about %(span)s.") % values
    if before.is_capped:
        return (
            gettext("It waits for the rate %(rate)s of “%(key)s”: over %(span)s. %(number)s jobs come before it.")
            % values
        )
    return (
        ngettext(
            "It waits for the rate %(rate)s of “%(key)s”: about %(span)s. %(number)s job comes before it.",
            "It waits for the rate %(rate)s of “%(key)s”: about %(span)s. %(number)s jobs come before it.",
            before.found,
        )
        % values
    )


def _seconds_until_token(job: Job, pace: tuple[float, int], before: int, now: datetime) -> float:
    """Return the seconds until the job gets a token, if each job before it takes one token."""
    interval, burst = pace
    full_at = RateBucket.objects.filter(key=job.rate_key).values_list("full_at", flat=True).first()
    missing = 0.0 if full_at is None else min(max(0.0, (full_at - now).total_seconds()), burst * interval)
    return max(0.0, missing + (before + 1 - burst) * interval)


def _jobs_before(job: Job) -> Count:
    """Count the jobs of the key that will be admitted before this job, up to the limit of a `Count`.

    Index: rate_waiting.
    """
    rank = LessThan(
        Row(MINUS_PRIORITY, F("run_after"), F("id")), Row(Value(-job.priority), Value(job.run_after), Value(job.pk))
    )
    return Count.of(Job.objects.filter(rank, gate="rate", rate_key=job.rate_key))


RATE_KEYS = KeyTable(
    facts=RATE_OF_KEY,
    renderers={
        "key": lambda state: state.key,
        "rate": lambda state: state.rate or "any",
        "due": lambda state: "" if state.current.due_in is None else "in " + in_words(max(state.current.due_in, 0.0)),
    },
    first=lambda store, most: rate_states(store, most=most),
    of_key=lambda store, key: rate_states_of(store, [key]),
    key_as_json=lambda states: {"rate": as_json(RATE_OF_KEY, states[0]) if states else None},
    waiting=waiting_for_a_token,
    cards=later(f"{__package__}.admin.cards"),
)

CONSOLE = KeyedConsole(
    keys=RATE_KEYS,
    metrics=(rates,),
    explain=why_it_waits_for_its_rate,
    job_keys=("rate_key",),
    queue_options=(RATES,),
)
