"""What operators see of carriers: how many jobs each has, and whether its relays and its broker can be reached.

The command line, the doctor, the metrics and the admin show this. Each statement reads a limited number of rows by an
index.
"""

import json
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...console.admin.ui.cells import badge, shortened
from ...console.cli.subcommand import Alias
from ...console.counts import grouped
from ...console.durations import clock_time, span
from ...console.metrics.catalogue import Values, measured
from ...console.parts import External, PartConsole, PartStatus
from ...console.queues_and_workers import Workforce, state_after
from ...console.rules.jobs_and_workers import WORKERS_PAGE, jobs_in_words
from ...console.rules.rule import Finding, Rule, Severity, database_time
from ...console.waiting import LONGEST_NAME_IN_SENTENCE, place_in_queue
from ...events.log_format import in_words
from ...models import Job, Status, Worker
from ...queue.store import Store
from ...values.codec import shorten
from ...values.exposition import Metric
from .carrier import carrier_id, carrier_of
from .management.commands.runrelay import Command as RunRelay
from .models import WorkerOfCelery
from .rows import is_window_lost, time_limit
from .settings import CarrierSettings, carrier_for, carriers

# Sent by pages, commands, metrics. Returns a row for each carrier: its name, its queues and its window; how many jobs
# it has, and since when it has the oldest of them, as a time and in seconds; how many of its relays are alive; the
# seconds since a relay's last heartbeat, and since a relay last reached the broker; and how many jobs it has refused.
# Reads the first `limit` running jobs once; if there is no carrier, reads none. Index: recover.
CARRIERS_NOW = """
WITH held_jobs AS MATERIALIZED (
    SELECT locked_by, count(*) AS number, min(locked_at) AS oldest
    FROM (
        SELECT locked_by, locked_at
        FROM skipqueue_job
        WHERE status = 'running' AND EXISTS (SELECT FROM skipqueue_worker WHERE is_external)
        ORDER BY locked_at
        LIMIT %(limit)s
    ) AS job
    GROUP BY locked_by
)
SELECT
    carrier.name,
    carrier.queues::text,
    carrier.concurrency,
    COALESCE(held_jobs.number, 0),
    held_jobs.oldest,
    date_part('epoch', statement_timestamp() - held_jobs.oldest),
    (
        SELECT count(*)
        FROM skipqueue_celery_worker AS relay JOIN skipqueue_worker AS worker ON worker.id = relay.worker_id
        WHERE
            relay.relay_of = carrier.name
            AND worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(worker_timeout)s)
    ),
    date_part('epoch', statement_timestamp() - carrier.heartbeat_at),
    date_part('epoch', statement_timestamp() - celery_row.reached_at),
    celery_row.refused
FROM
    skipqueue_worker AS carrier
    JOIN skipqueue_celery_worker AS celery_row ON celery_row.worker_id = carrier.id
    LEFT JOIN held_jobs ON held_jobs.locked_by = carrier.id
WHERE carrier.is_external
ORDER BY carrier.name
LIMIT 200
"""

# Sent by the doctor. Returns the jobs that a carrier has had for longer than `seconds`, with their time limits. The
# jobs that were claimed first come first. Reads at most 5,000 jobs. Index: recover.
HELD_FOR_LONG = """
SELECT id, task, locked_by, date_part('epoch', statement_timestamp() - locked_at) AS age, timeout
FROM (
    SELECT id, task, locked_by, locked_at, timeout
    FROM skipqueue_job
    WHERE status = 'running' AND locked_at <= statement_timestamp() - make_interval(secs => %(seconds)s)
    ORDER BY locked_at
    LIMIT 5000
) AS job
WHERE locked_by = %(carrier_id)s
ORDER BY locked_at
LIMIT 1000
"""

MOST_CARRIED_COUNTED = 100_000
"""A statement reads at most this many running jobs. It is the largest number of jobs that a carrier may have."""

DELIVERIES = 3
"""The broker delivers a job at most this many times."""


@dataclass(frozen=True)
class CarrierNow:
    name: str
    queues: tuple[str, ...]
    """The queues whose jobs the carrier runs, by the settings of the relay that last wrote its row."""
    window: int
    """The maximum number of jobs that the carrier may have."""
    held: int
    """How many jobs the carrier has."""
    oldest: datetime | None
    """When a relay claimed the oldest of these jobs."""
    oldest_seconds: float | None
    relays: int
    """How many of the carrier's relays are alive."""
    heartbeat_age: float
    """Seconds since a relay was last alive."""
    reached_age: float | None
    """Seconds since a relay last reached the broker; `None` if none ever has."""
    refused: int
    """How many jobs the carrier has ever refused, because its queue was full or did not exist."""

    @property
    def is_reachable(self) -> bool | None:
        """Whether a relay reaches the broker; `None` if no relay is alive, so this is unknown."""
        if not self.relays:
            return None
        return self.reached_age is not None and state_after(timedelta(seconds=self.reached_age)) == "live"


def carriers_now(store: Store) -> list[CarrierNow]:
    """Return the carriers that relays have served in this database, sorted by name.

    A carrier that is no longer in the settings is included while it still has jobs.
    """
    limits = {"limit": MOST_CARRIED_COUNTED, "worker_timeout": settings.worker_timeout}
    rows = store.rows(CARRIERS_NOW, limits)
    found_carriers = (CarrierNow(name, tuple(map(str, json.loads(queues))), *row) for name, queues, *row in rows)
    return [carrier for carrier in found_carriers if carrier.held or carrier.name in carriers()]


def relay_names(store: Store, worker_ids: Collection[str]) -> dict[str, str]:
    """Return the relays among these workers, each with the name of its carrier."""
    rows = WorkerOfCelery.objects.using(store.alias).filter(pk__in=worker_ids).exclude(relay_of="")
    return dict(rows.values_list("pk", "relay_of"))


def overdue_jobs(store: Store, carrier: CarrierSettings) -> Iterator[tuple[int, str, str, float]]:
    """Yield the jobs that the carrier should have returned long ago: id, task, holder and seconds, the oldest first.

    After `wait` seconds a job comes back unless a worker has it, and at most `DELIVERIES` workers may each take as long
    as the job's time limit.
    """
    parameters = {"seconds": carrier.wait, "carrier_id": carrier_id(carrier.name)}
    for job_id, task, holder, age, timeout in store.rows(HELD_FOR_LONG, parameters):
        if age > carrier.wait + DELIVERIES * time_limit(task, timeout):
            yield job_id, task, holder, age


# In words


def carrier_with(job: Job) -> str:
    """Return the name of the carrier that has this running job; empty if none has it."""
    return carrier_of(job.locked_by) if job.status == Status.RUNNING else ""


def broker_in_words(carrier: CarrierNow) -> str:
    if carrier.is_reachable is None:
        return gettext("no relay is alive")
    return gettext("broker reachable") if carrier.is_reachable else gettext("broker not reachable")


def relays_in_words(number: int) -> str:
    return ngettext("%(number)s relay", "%(number)s relays", number) % {"number": grouped(number)}


def why_it_waits(job: Job, now: datetime, workforce: Workforce) -> str:
    """Explain what a queued job of a carrier waits for, or since when the carrier has it; otherwise empty."""
    if job.status == Status.QUEUED and (carrier := carrier_for(job.queue_name)):
        if not workforce.serving(job.queue_name):
            return gettext("It waits for a relay, but no relay of %(carrier)s is alive.") % {"carrier": carrier.name}
        text = gettext("It is the next job in the queue “%(queue)s”, and goes to %(carrier)s once there is room.")
        return place_in_queue(job, text % {"queue": "%(queue)s", "carrier": carrier.name})
    name = carrier_with(job)
    if not name or job.locked_at is None:
        return ""
    values = {"carrier": shorten(name, LONGEST_NAME_IN_SENTENCE), "time": clock_time(job.locked_at, now)}
    relays = [worker.id for worker in workforce.not_dead if not worker.slots]
    if not relays or name not in relay_names(Store.default(), relays).values():
        return (
            gettext(
                "It has been with %(carrier)s since %(time)s. No relay is alive, so its outcome cannot be stored yet."
            )
            % values
        )
    return gettext("It has been with %(carrier)s since %(time)s, where it waits or runs.") % values


def _status_line(carrier: CarrierNow) -> str:
    oldest_text = "" if carrier.oldest_seconds is None else f", the oldest for {in_words(carrier.oldest_seconds)}"
    relays_text = f"{carrier.relays} relay{'' if carrier.relays == 1 else 's'}, " if carrier.relays else ""
    refused_text = f", {carrier.refused:,} refused" if carrier.refused else ""
    held_text = f"has {carrier.held:,} of at most {carrier.window:,} jobs{oldest_text}"
    return f"Carrier {carrier.name} {held_text}; {relays_text}{broker_in_words(carrier)}{refused_text}."


def status(store: Store) -> PartStatus:
    carriers_here = carriers_now(store)
    as_json = [
        {
            "carrier": carrier.name,
            "queues": carrier.queues,
            "held": carrier.held,
            "window": carrier.window,
            "oldest_at": carrier.oldest,
            "oldest_seconds": carrier.oldest_seconds,
            "relays": carrier.relays,
            "is_reachable": carrier.is_reachable,
            "heartbeat_age_seconds": carrier.heartbeat_age,
            "refused": carrier.refused,
        }
        for carrier in carriers_here
    ]
    return PartStatus(lines=[_status_line(carrier) for carrier in carriers_here], as_json={"carriers": as_json})


# Metrics


CARRIER_LABELS = ("carrier",)
REFUSED_HELP = "Jobs that the carrier refused because its queue was full."


@measured(
    "carriers",
    Metric("skipqueue_carried_jobs", "gauge", "Jobs that the carrier has, counted up to 100,000.", CARRIER_LABELS),
    Metric(
        "skipqueue_carrier_window", "gauge", "The maximum number of jobs that the carrier may have.", CARRIER_LABELS
    ),
    Metric(
        "skipqueue_carrier_oldest_seconds",
        "gauge",
        "Seconds since the oldest of these jobs was handed over.",
        CARRIER_LABELS,
    ),
    Metric("skipqueue_carrier_relays", "gauge", "Relays of the carrier that are alive.", CARRIER_LABELS),
    Metric("skipqueue_carrier_reachable", "gauge", "1 if a live relay reaches the broker.", CARRIER_LABELS),
    Metric("skipqueue_carrier_refused_total", "counter", REFUSED_HELP, CARRIER_LABELS),
    Metric("skipqueue_carrier_heartbeat_age_seconds", "gauge", "Seconds since a relay was last alive.", CARRIER_LABELS),
)
def metrics(store: Store) -> Iterator[Values]:
    by_name = {(carrier.name,): carrier for carrier in carriers_now(store)}
    yield {name: carrier.held for name, carrier in by_name.items()}
    yield {name: carrier.window for name, carrier in by_name.items()}
    yield {name: max(carrier.oldest_seconds or 0.0, 0.0) for name, carrier in by_name.items()}
    yield {name: carrier.relays for name, carrier in by_name.items()}
    yield {name: int(carrier.is_reachable is True) for name, carrier in by_name.items()}
    yield {name: carrier.refused for name, carrier in by_name.items()}
    yield {name: max(carrier.heartbeat_age, 0.0) for name, carrier in by_name.items()}


# The doctor


def carriers_without_relay(store: Store) -> Iterator[Finding]:
    known_carriers = carriers_now(store)
    held_by_name = {carrier.name: carrier.held for carrier in known_carriers}
    heartbeat_ages = {carrier.name: carrier.heartbeat_age for carrier in known_carriers}
    with_relay = {carrier.name for carrier in known_carriers if carrier.relays}
    workforce = Workforce.now(using=store.alias)
    queues_with_jobs = set(store.queues_with_jobs())
    for name, carrier in carriers().items():
        is_unserved = any(queue in queues_with_jobs and not workforce.serving(queue) for queue in carrier.queues)
        waiting_text = [gettext("Jobs wait.")] if is_unserved else []
        if name not in with_relay and (is_unserved or held_by_name.get(name)):
            yield Finding.of(
                Severity.CRITICAL if is_unserved else Severity.WARNING,
                gettext("No relay of the carrier %(name)s is alive") % {"name": name},
                " ".join([*waiting_text, _held_in_words(held_by_name.get(name, 0))]),
                gettext("Start a relay. Until then no job is handed over, and no outcome that comes back is written."),
                _run_relay("--carrier", name),
                subject=name,
                since=database_time(store) - timedelta(seconds=heartbeat_ages[name])
                if name in heartbeat_ages
                else None,
                link=WORKERS_PAGE,
            )


def unreachable_carriers(store: Store) -> Iterator[Finding]:
    for carrier in carriers_now(store):
        if carrier.is_reachable is False:
            age_text = span(carrier.reached_age) if carrier.reached_age else "?"
            yield Finding.of(
                Severity.CRITICAL,
                gettext("The broker of the carrier %(name)s cannot be reached"),
                gettext("Relays: %(relays)s. Time since the last contact: %(age)s."),
                gettext(
                    "Check the broker, and look for “carrier lost” in the relay's log. If the broker stays down, "
                    "workers can run the waiting jobs, if you name the queues."
                ),
                shlex.join(["python", "manage.py", "runworker", "--queues", ",".join(carrier.queues)]),
                facts={"name": carrier.name, "relays": carrier.relays, "age": age_text},
                subject=carrier.name,
                since=database_time(store) - timedelta(seconds=carrier.reached_age) if carrier.reached_age else None,
                link=WORKERS_PAGE,
            )


def lost_jobs(store: Store) -> Iterator[Finding]:
    """Find jobs that a carrier should have returned long ago, and jobs of a carrier that is not in the settings."""
    for carrier_now in carriers_now(store):
        carrier = carriers().get(carrier_now.name)
        overdue_rows = (
            list(overdue_jobs(store, carrier)) if carrier and carrier_now.held and carrier_now.is_reachable else []
        )
        if (
            carrier
            and carrier_now.held >= carrier.window
            and carrier_now.is_reachable
            and is_window_lost(store, carrier)
        ):
            severity, title = Severity.CRITICAL, gettext("The broker of the carrier %(name)s has lost its jobs")
            details = gettext(
                "Jobs that it should have: %(held)s. They fill its window, so no other jobs are handed over."
            ) % {"held": carrier_now.held}
            advice = gettext(
                "All of these jobs should have ended or come back, because WAIT and their time limits are over. This "
                "command releases all of them."
            )
        elif overdue_rows or (carrier_now.held and not carrier):
            severity, title = Severity.WARNING, gettext("The broker of the carrier %(name)s may have lost jobs")
            details = jobs_in_words(store, overdue_rows) if overdue_rows else _held_in_words(carrier_now.held)
            advice = (
                gettext(
                    "The carrier has had each of these jobs for longer than WAIT and three times the timeout. If the "
                    "broker's queues are empty, it has lost the jobs, and this command releases all of the carrier's "
                    "jobs. Any jobs that the broker still has then run twice."
                )
                if overdue_rows
                else gettext("The settings no longer contain this carrier. Add it again, or release its jobs.")
            )
        else:
            continue
        command = _run_relay("--reclaim", carrier_now.name)
        name, since = carrier_now.name, carrier_now.oldest
        yield Finding.of(
            severity, title % {"name": name}, details, advice, command, subject=name, since=since, link=WORKERS_PAGE
        )


def _held_in_words(number: int) -> str:
    return gettext("Jobs that the carrier has: %(held)s.") % {"held": number}


def _run_relay(option: str, carrier: str) -> str:
    return shlex.join(["python", "manage.py", "runrelay", option, carrier])


# The admin


DETAIL_CELL = '<span class="skipqueue-detail">{}</span>'


def cells(store: Store, workers: Sequence[Worker]) -> dict[str, dict[str, str]]:
    """Return the cells for carriers and relays in the list of workers, by at most two queries."""
    cells_by_worker: dict[str, dict[str, str]] = {}
    has_carriers = any(worker.is_external for worker in workers)
    carriers_by_name = {carrier.name: carrier for carrier in carriers_now(store)} if has_carriers else {}
    relays = relay_names(store, [worker.pk for worker in workers if not worker.concurrency])
    for worker in workers:
        if worker.pk in relays:
            cells_by_worker[worker.pk] = {
                "detail": gettext("relay of %(carrier)s") % {"carrier": shortened(relays[worker.pk])}
            }
        elif worker.is_external and (carrier := carriers_by_name.get(worker.name)):
            cells_by_worker[worker.pk] = _carrier_cells(carrier, worker.now)  # type: ignore[attr-defined]  # annotated by the list
    return cells_by_worker


def _carrier_cells(carrier: CarrierNow, now: datetime) -> dict[str, str]:
    state = {True: "live", False: "late", None: "stale"}[carrier.is_reachable]  # None: no relay is alive
    kind = " · ".join([gettext("carrier"), relays_in_words(carrier.relays)])
    held = {"held": grouped(carrier.held), "window": grouped(carrier.window)}
    refused = ngettext("%(number)s job refused", "%(number)s jobs refused", carrier.refused)
    return {
        "state": badge(state, broker_in_words(carrier)),
        "worker": format_html('<span class="skipqueue-name">{}</span> ' + DETAIL_CELL, shortened(carrier.name), kind),
        "slots": gettext("%(held)s/%(window)s jobs") % held,
        "memory": format_html(DETAIL_CELL, refused % {"number": grouped(carrier.refused)} if carrier.refused else ""),
        "runs_now": gettext("the oldest since %(time)s") % {"time": clock_time(carrier.oldest, now)}
        if carrier.oldest
        else gettext("nothing"),
    }


CONSOLE = PartConsole(
    external=External(
        holder=carrier_with,
        explain=why_it_waits,
        unserved="no relay of its carrier is alive",
        processes=relays_in_words,
        cells=cells,
    ),
    status=status,
    subcommands=(Alias("relay", RunRelay),),
    rules=(
        Rule(
            "carrier-without-relay", carriers_without_relay, _("Every carrier with jobs has a relay"), is_watched=True
        ),
        Rule(
            "carrier-unreachable",
            unreachable_carriers,
            _("The broker of every carrier can be reached"),
            is_watched=True,
        ),
        Rule("carrier-lost-jobs", lost_jobs, _("No carrier has had jobs for too long"), is_watched=True),
    ),
    metrics=(metrics,),
)
