"""What operators see of limits: keys, rules about problems, metrics, and why a job waits for a permit."""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import F, QuerySet, Value
from django.db.models.lookups import LessThan
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...console.cli.status import in_full
from ...console.cli.terminal import RED, Coloured
from ...console.counts import MOST_HALTING, SCRAPED_HALTING, SCRAPED_KEYS, Count
from ...console.durations import clock_time, span
from ...console.facts import as_json, plain
from ...console.job_states import Indexed
from ...console.metrics.catalogue import Values, measured
from ...console.parts import PartSection, PartStatus, usual_runs
from ...console.rules.jobs_and_workers import HANG_FACTOR, full_pools
from ...console.rules.rule import Finding, PageLink, Rule, Severity, Threshold, database_time
from ...events.log_format import in_words, job_name, printable
from ...models import Job, Status
from ...models.expressions import Row
from ...queue.store import Store
from ...values.exposition import Metric
from ...values.part import later
from ..keyed.console import KeyedConsole, KeyTable
from ..keyed.states import key_of_job
from .admit import blocked_keys
from .models import HALTS, LIMIT_RANK
from .services import unclaimed_holders
from .states import (
    LIMIT_OF_KEY,
    LIMITS,
    LimitState,
    halted_by_key,
    halted_keys,
    halted_states,
    holders_of,
    key_of_limit,
    limit_states,
    permits,
    waiting_keys,
)


@measured(
    "limits",
    Metric("skipqueue_halted_sequences", "gauge", "Sequences that halted at a failed job while other jobs wait."),
    Metric("skipqueue_longest_halt_seconds", "gauge", "Seconds since the first of these sequences halted."),
    Metric("skipqueue_waiting_keys", "gauge", "Keys of limits and sequences with waiting jobs, counted up to 500."),
)
def keys(store: Store) -> Iterator[Values]:
    halted = halted_keys(store, limit=SCRAPED_HALTING)
    yield {(): len({halt.key for halt in halted})}
    yield {(): max((halt.seconds for halt in halted), default=0.0)}
    yield {(): len(waiting_keys(store, limit=SCRAPED_KEYS))}


def status(store: Store) -> PartStatus:
    """Return the number of halted sequences and the job at which the first of them halted, for `skipqueue status`."""
    halted = halted_keys(store)
    number = Count(len({halt.key for halt in halted}), cap=MOST_HALTING)
    lines = [
        f"Halted sequences: {in_full(number)} (job {first.job_id} failed {in_words(first.seconds)} ago). "
        "See: skipqueue limits"
        for first in halted[:1]
    ]
    return PartStatus(as_json={"halted_sequences": plain(number)}, lines=lines)


MOST_KEYS_CHECKED = 50
"""The maximum number of keys that one check reads."""

MOST_KEYS_NAMED = 5
"""The maximum number of keys or queues that one text names."""

MOST_HOLDERS = 1_000
"""The maximum number of permit holders to read, in order to count them by queue."""

LONGEST_FREE = 60.0
"""Seconds a job may wait while a permit of its key is free, before a rule reports it."""

HELD_THRESHOLD = Threshold("held-permit", 60.0, "seconds")


def halted(store: Store) -> Iterator[Finding]:
    for state in halted_states(store, most=MOST_KEYS_CHECKED):
        if state.halted is None:
            continue
        now, job = database_time(store), job_name(store.alias, state.halted.job_id)
        since = now - timedelta(seconds=state.halted.seconds)
        yield Finding.of(
            Severity.WARNING,
            gettext("Sequence %(key)s halted at %(time)s because job %(job)s failed. Waiting jobs: %(waiting)s"),
            gettext("The sequence waits for an operator."),
            gettext(
                "Find out why the job failed. Then retry it, and it runs before the other jobs of its sequence; or "
                "discard it, and the sequence goes on without it."
            ),
            f"python manage.py skipqueue retry {job}",
            facts={
                "key": printable(state.key),
                "time": clock_time(since, now),
                "job": job,
                "waiting": state.waiting,
            },
            subject=state.key,
            since=since,
            link=PageLink("job_change", (state.halted.job_id,)),
        )


def free_permits(store: Store) -> Iterator[Finding]:
    """Find keys with a free permit and a job that has waited long for it. Reads the first thousand keys."""
    free_keys = [key for key, is_free in blocked_keys(store).items() if is_free]
    states = limit_states(store, free_keys[:MOST_KEYS_CHECKED], halted={})
    late = [
        gettext("%(key)s (for %(span)s)") % {"key": printable(state.key), "span": span(state.oldest)}
        for state in states
        if state.oldest >= LONGEST_FREE
    ]
    if late:
        yield Finding.of(
            Severity.CRITICAL,
            gettext("Permits are free, but no supervisor gives them to waiting jobs"),
            gettext("Keys whose next job waits although a permit is free: %(keys)s."),
            gettext(
                "A supervisor gives free permits about every second. Start a runworker. If one is running, call the "
                "doctor again, because a permit may have become free just now."
            ),
            "python manage.py runworker",
            facts={"keys": "; ".join([*late[:MOST_KEYS_NAMED], "…"] if len(late) > MOST_KEYS_NAMED else late)},
        )


# Sent by held-permit. Returns the running jobs that hold a permit and that workers claimed more than `seconds` ago, the
# first claimed first; each with the current time. Index: recover.
LONG_HOLDERS = """
SELECT limit_key, id, lease, task, locked_at, statement_timestamp()
FROM skipqueue_job
WHERE
    status = 'running'
    AND locked_at <= statement_timestamp() - make_interval(secs => %(seconds)s)
    AND limit_key IS NOT NULL
    AND limit_kind <> 'fair'
    AND gate IS DISTINCT FROM 'ahead'
    AND locked_by <> ALL (SELECT id FROM skipqueue_worker WHERE is_external)
ORDER BY locked_at
LIMIT 1000
"""

LONGEST_RUN = 600.0
"""Seconds after which a job probably hangs, if the usual run time of its task is unknown."""


class LongHolder(NamedTuple):
    """A row of `LONG_HOLDERS`."""

    key: str
    id: int
    lease: int
    task: str
    since: datetime
    now: datetime


def hung_holders(store: Store, seconds: float) -> dict[str, list[LongHolder]]:
    """Return, by key, the jobs that hold a permit and probably hang. Leaves out jobs that `no-free-slot` reports."""
    holders = [LongHolder(*row) for row in store.rows(LONG_HOLDERS, {"seconds": seconds})]
    usual = usual_runs(store, (holder.task for holder in holders))
    longest = {task: HANG_FACTOR * usual_seconds for task, usual_seconds in usual.items()}
    hung = [
        holder
        for holder in holders
        if (holder.now - holder.since).total_seconds() >= longest.get(holder.task, LONGEST_RUN)
    ]
    reported_ids = {job.id for pool in full_pools(store) for job in pool.jobs} if hung else set()
    locked_ids = store.locked([(holder.id, holder.lease) for holder in hung]) if hung else set()
    by_key: dict[str, list[LongHolder]] = {}
    for holder in hung:
        if holder.id not in reported_ids and holder.id not in locked_ids:
            by_key.setdefault(holder.key, []).append(holder)
    return by_key


def held_permits(store: Store) -> Iterator[Finding]:
    """Find keys whose jobs have waited long: jobs that hang hold permits, or unclaimed jobs hold all permits."""
    seconds = HELD_THRESHOLD.of()
    if seconds is None:
        return
    hung, unclaimed = hung_holders(store, seconds), unclaimed_holders(store)
    states = [
        state
        for state in limit_states(store, dict.fromkeys([*hung, *unclaimed][:MOST_KEYS_CHECKED]), halted={})
        if state.oldest >= seconds
        and (state.current.key in hung or unclaimed.get(state.current.key, 0) >= state.current.held)
    ]
    reported_queues = {queue.name for pool in full_pools(store) for queue in pool.queues} if states else set()
    for state in states:
        since = database_time(store) - timedelta(seconds=state.oldest)
        if holders := hung.get(state.current.key):
            yield _held_by_hung_jobs(store, state, holders, since)
            continue
        queues = _queues_of(holders_of(state.current.key).using(store.alias), 1)
        if not queues:  # since the first query, a worker has claimed the job, or the permit has become free
            continue
        ((queue_name, _jobs),) = queues
        if queue_name not in reported_queues:  # `no-free-slot` says why no worker claims their jobs
            yield _held_by_unclaimed_jobs(state, queue_name, since)


def _held_by_hung_jobs(store: Store, state: LimitState, holders: Sequence[LongHolder], since: datetime) -> Finding:
    first = holders[0]
    job_names = [job_name(store.alias, holder.id) for holder in holders[:MOST_KEYS_NAMED]]
    usual = usual_runs(store, [first.task]).get(first.task)
    title = ngettext(
        "Jobs have waited for a permit of %(key)s since %(time)s, %(waiting)s in all: job %(job)s of %(task)s holds it "
        "and probably hangs: it has run for %(runs)s",
        "Jobs have waited for a permit of %(key)s since %(time)s, %(waiting)s in all: %(hung)s jobs of %(task)s hold "
        "its permits and probably hang: the first, job %(job)s, has run for %(runs)s",
        len(holders),
    )
    if usual is not None:
        title += gettext("; usually such a job takes %(usual)s at most")
    return Finding.of(
        Severity.CRITICAL if len(holders) >= state.current.held else Severity.WARNING,
        title,
        gettext("Jobs that hold a permit of the key: %(held)s, of which probably hang: %(hung)s."),
        gettext("Cancel the jobs that hang. A timeout on the task keeps that from happening again."),
        shlex.join(["python", "manage.py", "skipqueue", "cancel", *job_names]),
        facts={
            "key": printable(state.key),
            "time": clock_time(since, first.now),
            "waiting": state.waiting,
            "job": job_names[0],
            "task": printable(first.task),
            "runs": span(first.now - first.since),
            "usual": span(usual or 0.0),
            "held": state.held,
            "hung": len(holders),
        },
        subject=state.key,
        since=since,
        link=PageLink("job_change", (first.id,)),
    )


def _held_by_unclaimed_jobs(state: LimitState, queue_name: str, since: datetime) -> Finding:
    return Finding.of(
        Severity.WARNING,
        gettext(
            "Jobs have waited for a permit of %(key)s since %(time)s, %(waiting)s in all: the permits are held by jobs "
            "of queue %(queue)s that no worker claims"
        ),
        gettext("Jobs that hold a permit and are not claimed: %(held)s."),
        gettext("That queue is behind. Start more workers for it, or give the tasks limits of their own."),
        shlex.join(["python", "manage.py", "runworker", "--queues", queue_name]),
        facts={
            "waiting": state.waiting,
            "key": printable(state.key),
            "time": clock_time(since, since + timedelta(seconds=state.oldest)),
            "queue": printable(queue_name),
            "held": state.held,
        },
        subject=state.key,
        since=since,
        link=PageLink("job_limits"),
    )


def _queues_of(holders: "QuerySet[Job]", most: int) -> list[tuple[str, int]]:
    """Return the queues with the most unclaimed permit holders, each with their number."""
    queue_names = holders.filter(status=Status.QUEUED).values_list("queue_name", flat=True)[:MOST_HOLDERS]
    return Counter(queue_names).most_common(most)


def why_it_is_blocked(job: Job, _now: datetime) -> str:
    """Explain what a job waits for at its limit. Empty if it does not wait for a permit."""
    if job.gate != "limit" or job.limit_key is None:
        return ""
    values = {"key": key_of_job(job, job.limit_key)}
    holders = holders_of(job.limit_key)
    if job.limit_kind == "fair":
        queued = Count.of(holders.filter(status=Status.QUEUED))
        return gettext(
            "It waits for its turn: %(queued)s jobs of its key “%(key)s” are queued already, and more would delay the "
            "jobs of other keys."
        ) % {**values, "queued": queued}
    if job.limit_kind != "concurrency":
        return _why_its_sequence_waits(holders[:1], values)
    capacity = permits(job.limit_key, job.capacity)
    if capacity is None:
        return gettext("It will be admitted within a second or two, because its queue has no limit.")
    count = Count.of(holders)
    before = _jobs_before(job)
    held = gettext("It waits for a permit of its key “%(key)s”: %(held)s of %(capacity)s are taken.") % {
        **values,
        "held": count,
        "capacity": capacity,
    }
    if queues := [
        gettext("%(number)s in “%(queue)s”") % {"number": number, "queue": name}
        for name, number in _queues_of(holders, MOST_KEYS_NAMED)
    ]:
        held += " " + gettext("Of these, jobs waiting for a worker: %(queues)s.") % {"queues": ", ".join(queues)}
    if not before.found:
        return held
    return f"{held} " + ngettext("%(number)s job comes before it.", "%(number)s jobs come before it.", before.found) % {
        "number": before
    }


def _why_its_sequence_waits(holders: "QuerySet[Job]", values: dict[str, str]) -> str:
    for holder in holders:
        holder_values = {**values, "id": holder.pk, "status": holder.get_status_display()}
        if holder.status == Status.FAILED:
            return (
                gettext("Its sequence “%(key)s” has halted because job %(id)s failed. Retry or discard that job.")
                % holder_values
            )
        return gettext("It waits for job %(id)s of its sequence “%(key)s”, which is %(status)s.") % holder_values
    return gettext("It is next in its sequence “%(key)s”, and will be admitted within a second or two.") % values


def _jobs_before(job: Job) -> Count:
    """Count the blocked jobs that will be admitted before this job, up to the limit of a `Count`.

    Index: limit_waiting.
    """
    rank = LessThan(Row(LIMIT_RANK, F("id")), Row(Value(-job.priority), Value(job.pk)))
    return Count.of(Job.objects.filter(rank, gate="limit", limit_key=job.limit_key))


def _first(store: Store, most: int) -> list[LimitState]:
    """Return the halted sequences, then, in alphabetical order, the keys that are not halted."""
    halted = halted_states(store, most=most)
    halted_keys = {state.current.key for state in halted}
    other_keys = [key for key in waiting_keys(store, limit=most) if key not in halted_keys]
    return [*halted, *limit_states(store, other_keys, halted={})][:most]


def _state(state: LimitState) -> str:
    if state.halted is None:
        return gettext("waits")
    return Coloured(f"halted: job {state.halted.job_id} failed {in_words(state.halted.seconds)} ago", RED)


LIMIT_KEYS = KeyTable(
    facts=LIMIT_OF_KEY,
    renderers={"key": lambda state: state.key, "kind": lambda state: state.kind, "state": _state},
    first=_first,
    of_key=lambda store, key: limit_states(store, [key], halted=halted_by_key(store)),
    key_as_json=lambda states: as_json(LIMIT_OF_KEY, states[0]) if states else {},
    holders=holders_of,
    waiting=lambda key: Indexed(Status.BLOCKED, key=key_of_limit(key)).jobs(),
    cards=later(f"{__package__}.admin.cards"),
    start=lambda job: job.limit_key,
)

CONSOLE = KeyedConsole(
    keys=LIMIT_KEYS,
    rules=(
        Rule("halted-sequence", halted, _("No sequence has halted"), is_watched=True),
        Rule("free-permit", free_permits, _("No permit is free while jobs wait for it")),
        Rule(
            "held-permit",
            held_permits,
            _("No permit is held by a job that no worker claims"),
            is_watched=True,
            threshold=HELD_THRESHOLD,
        ),
    ),
    metrics=(keys,),
    sections=(
        PartSection(
            name="limits",
            template="admin/django_skipqueue/limits/dashboard.html",
            content=later(f"{__package__}.admin.first_keys"),
            css="django_skipqueue/keyed/keys.css",
            after="queues",
        ),
    ),
    status=status,
    explain=why_it_is_blocked,
    job_filters=later(f"{__package__}.admin.job_filters"),
    job_keys=("limit_key",),
    holds_up=lambda job: job.limit_kind == "halting",
    holding_up=HALTS,
    queue_options=(LIMITS,),
)
