"""Carriers, for operators: a subcommand, checks of the doctor, and metrics."""

import shlex
from collections.abc import Callable, Iterator

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.cli.dispatcher import Alias
from ...console.doctor.finding import Check, Finding, Severity
from ...console.doctor.jobs import listed
from ...console.durations import span
from ...console.metrics.catalogue import Scraped
from ...console.parts import External, PartConsole
from ...console.worker_health import Workforce
from ...queue.store import Store
from ...values.exposition import Family, Metric
from . import admin
from .conf import carriers
from .management.commands.runrelay import Command as RunRelay
from .relay import is_window_lost
from .states import CarrierNow, carriers_now, overdue_jobs
from .words import carrier_with, relays_in_words, status, why_it_waits

CARRIER = ("carrier",)
CARRIED = Metric(
    "skipqueue_carried_jobs", "gauge", "Jobs that the carrier holds: at most 100,000 are counted.", CARRIER
)
CARRIER_WINDOW = Metric("skipqueue_carrier_window", "gauge", "Jobs that the carrier holds at most.", CARRIER)
CARRIER_OLDEST = Metric(
    "skipqueue_carrier_oldest_seconds", "gauge", "Seconds since the first of these was handed over.", CARRIER
)
CARRIER_RELAYS = Metric("skipqueue_carrier_relays", "gauge", "Relays of the carrier that are not dead.", CARRIER)
CARRIER_REACHABLE = Metric("skipqueue_carrier_reachable", "gauge", "1 if a live relay reaches the broker.", CARRIER)
CARRIER_REFUSED = Metric(
    "skipqueue_carrier_refused_total", "counter", "Jobs that the carrier has not taken: its queue was full.", CARRIER
)
CARRIER_AGE = Metric(
    "skipqueue_carrier_heartbeat_age_seconds", "gauge", "Seconds since a relay was last alive.", CARRIER
)

METRICS: tuple[tuple[Metric, Callable[[CarrierNow], float]], ...] = (
    (CARRIED, lambda carrier: carrier.held),
    (CARRIER_WINDOW, lambda carrier: carrier.window),
    (CARRIER_OLDEST, lambda carrier: max(carrier.oldest_seconds or 0.0, 0.0)),
    (CARRIER_RELAYS, lambda carrier: carrier.relays),
    (CARRIER_REACHABLE, lambda carrier: int(carrier.is_reachable is True)),
    (CARRIER_REFUSED, lambda carrier: carrier.refused),
    (CARRIER_AGE, lambda carrier: max(carrier.heartbeat_age, 0.0)),
)
"""Each metric, and its value for one carrier."""


def families(store: Store) -> Iterator[Family]:
    found = carriers_now(store)
    for metric, value in METRICS:
        yield Family(metric, {(carrier.name,): value(carrier) for carrier in found})


def without_relay(store: Store) -> Iterator[Finding]:
    found = carriers_now(store)
    held = {each.name: each.held for each in found}
    workforce, waiting = Workforce.now(using=store.alias), set(store.queues_with_jobs())
    relayed, waits = {each.name for each in found if each.relays}, gettext("Jobs wait for it.")
    for name, carrier in carriers().items():
        is_unserved = any(queue in waiting and not workforce.serving(queue) for queue in carrier.queues)
        if name not in relayed and (is_unserved or held.get(name)):
            yield Finding(
                "carrier-without-relay",
                Severity.CRITICAL if is_unserved else Severity.WARNING,
                gettext("No relay of the carrier %(name)s is alive") % {"name": name},
                " ".join(
                    [waits] * is_unserved + [gettext("Jobs that are with it: %(held)s.") % {"held": held.get(name, 0)}]
                ),
                gettext("Start one. Until then no job goes there, and no outcome that comes back is written."),
                shlex.join(["python", "manage.py", "runrelay", "--carrier", name]),
            )


def unreachable(store: Store) -> Iterator[Finding]:
    for carrier in carriers_now(store):
        if carrier.is_reachable is False:
            yield Finding(
                "carrier-unreachable",
                Severity.CRITICAL,
                gettext("The broker of the carrier %(name)s cannot be reached") % {"name": carrier.name},
                gettext("Its relays: %(relays)s. The last contact: %(age)s.")
                % {"relays": carrier.relays, "age": span(carrier.reached_age) if carrier.reached_age else "?"},
                gettext(
                    "Look at the broker, and at “carrier lost” in the relay's log. If it stays down, workers can run "
                    "the jobs that wait: name the queues."
                ),
                shlex.join(["python", "manage.py", "runworker", "--queues", ",".join(carrier.queues)]),
            )


def lost_jobs(store: Store) -> Iterator[Finding]:
    """Jobs that a carrier should have sent back long ago, and those of a carrier that the settings do not have."""
    kept_too_long = gettext(
        "Each is held for longer than its WAIT and three times its timeout. If the broker's queues are empty, it has "
        "lost them: this command releases all that the carrier holds. Jobs that it still has run twice then."
    )
    for now in carriers_now(store):
        carrier = carriers().get(now.name)
        rows = list(overdue_jobs(store, carrier)) if carrier and now.held and now.is_reachable else []
        if carrier and now.held >= carrier.window and now.is_reachable and is_window_lost(store, carrier):
            yield Finding(
                "carrier-lost-jobs",
                Severity.CRITICAL,
                gettext("The broker of the carrier %(name)s has lost its jobs") % {"name": now.name},
                gettext("Jobs that are with it: %(held)s. Its window is full of them, so no other job goes there.")
                % {"held": now.held},
                gettext(
                    "None was handed over within WAIT and the time limit of these jobs: each should have ended or come "
                    "back. This command releases all of them."
                ),
                shlex.join(["python", "manage.py", "runrelay", "--reclaim", now.name]),
            )
        elif rows or (now.held and not carrier):
            yield Finding(
                "carrier-lost-jobs",
                Severity.WARNING,
                gettext("The broker of the carrier %(name)s may have lost jobs") % {"name": now.name},
                listed(store, rows) if rows else gettext("Jobs that are with it: %(held)s.") % {"held": now.held},
                kept_too_long if rows else gettext("The settings do not have it: add it again, or release its jobs."),
                shlex.join(["python", "manage.py", "runrelay", "--reclaim", now.name]),
            )


EXTERNAL = External(
    holder=carrier_with,
    explain=why_it_waits,
    unserved="no relay of its carrier is alive",
    processes=relays_in_words,
    cells=admin.cells,
)

CONSOLE = PartConsole(
    external=EXTERNAL,
    notices=admin.without_relay,
    status=status,
    subcommands=(Alias("relay", RunRelay),),
    checks=(
        Check("carrier-without-relay", without_relay, _("Every carrier with jobs has a relay")),
        Check("carrier-unreachable", unreachable, _("The broker of every carrier is reached")),
        Check("carrier-lost-jobs", lost_jobs, _("No carrier holds jobs for too long")),
    ),
    metrics=(Scraped("carriers", families, tuple(metric for metric, _ in METRICS)),),
)
