"""Limits and sequences: whether a sequence waits for an operator, and whether free permits are given."""

from collections.abc import Iterator, Sequence

from django.utils.translation import gettext

from ...console.doctor.finding import Finding, Severity
from ...console.durations import span
from ...events.job_names import job_name
from ...events.log_format import printable
from ...queue.store import Store
from .admit import KEYS_AT_ONCE
from .states import LimitState, halted_states, limit_states

MOST = 50
"""Halted sequences, and keys with a free permit, that are read."""

NAMED = 5
"""How many one finding names, at most."""

NOT_GIVEN = 60.0
"""Seconds for which a job may wait although a permit of its key is free."""


def halted(store: Store) -> Iterator[Finding]:
    found = halted_states(store, most=MOST)
    if found:
        yield Finding(
            "halted-sequence",
            Severity.WARNING,
            gettext("Sequences have halted"),
            gettext("Their jobs wait for an operator: %(keys)s.")
            % {"keys": _listed([_halted_in_words(store, state) for state in found])},
            gettext(
                "Find out why these jobs have failed. Retry them: they run before all others of their keys. Or discard "
                "them, and the sequences go on without them."
            ),
            "python manage.py skipqueue limits",
        )


def free_permits(store: Store) -> Iterator[Finding]:
    """Keys with a free permit and a job that has waited for one for long. Of all keys, the first thousand are read."""
    free = [key for key, is_free in store.blocked_keys().items() if is_free]
    late = [state for state in limit_states(store, free[:MOST], {}) if state.oldest >= NOT_GIVEN]
    if late:
        yield Finding(
            "free-permit",
            Severity.CRITICAL,
            gettext("Permits are free, and nobody gives them"),
            gettext("Keys whose next job waits although a permit is free: %(keys)s.")
            % {"keys": _listed([_waiting_in_words(state) for state in late])},
            gettext(
                "A supervisor gives free permits about every second. Start a runworker. If one runs, call the doctor "
                "again: a permit may have become free at this moment."
            ),
            "python manage.py runworker",
        )


def held_permits(store: Store) -> Iterator[Finding]:
    """Keys whose permits are all held by jobs that no worker has claimed, while another has waited for long."""
    unclaimed = {
        each.key: len(each.held_up) + len(each.unserved)
        for each in store.contested_permits(after="", limit=KEYS_AT_ONCE)
    }
    late = [
        state
        for state in limit_states(store, list(unclaimed)[:MOST], {})
        if state.oldest >= NOT_GIVEN and unclaimed[state.now.key] >= state.now.held
    ]
    if late:
        yield Finding(
            "held-permit",
            Severity.WARNING,
            gettext("Permits are held by jobs that no worker claims"),
            gettext("Keys whose jobs wait for them: %(keys)s.")
            % {"keys": _listed([_waiting_in_words(state) for state in late])},
            gettext(
                "The queues of the jobs that hold them are behind. Start more workers for these queues, or give the "
                "tasks limits of their own."
            ),
            "python manage.py skipqueue status",
        )


def _halted_in_words(store: Store, state: LimitState) -> str:
    job = job_name(store.alias, state.halted.job_id) if state.halted else ""
    return gettext("%(key)s (job %(id)s failed %(span)s ago)") % {
        "key": printable(state.key),
        "id": job,
        "span": span(state.seconds),
    }


def _waiting_in_words(state: LimitState) -> str:
    return gettext("%(key)s (for %(span)s)") % {"key": printable(state.key), "span": span(state.oldest)}


def _listed(texts: Sequence[str]) -> str:
    return "; ".join([*texts[:NAMED], *(["…"] if len(texts) > NAMED else [])])
