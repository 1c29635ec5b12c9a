"""The carriers: whether relays serve them, whether their brokers are reached, and whether these have lost jobs."""

import shlex
from collections.abc import Iterator

from django.utils.translation import gettext

from ...conf import settings
from ...console.doctor.finding import Finding, Severity
from ...console.doctor.jobs import listed
from ...console.durations import span
from ...console.worker_health import Workforce
from ...queue.store import Store
from .relay import is_window_lost
from .states import carriers_now, overdue_jobs


def without_relay(store: Store) -> Iterator[Finding]:
    held = {each.name: each.held for each in carriers_now(store)}
    workforce, waiting = Workforce.now(using=store.alias), set(store.queues_with_jobs())
    relayed, waits = {each.relay_of for each in workforce.relays}, gettext("Jobs wait for it.")
    for name, carrier in settings.carriers.items():
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
        carrier = settings.carriers.get(now.name)
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
