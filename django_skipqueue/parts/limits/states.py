"""What operators see of limits: how many jobs of a key hold a permit, halted sequences, and the limits of queues.

Each statement reads a key by a few index lookups, however many jobs there are. `parts.limits.admit` explains which of a
key's jobs hold a permit and which wait for one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from django import forms
from django.contrib.admin.widgets import AdminIntegerFieldWidget
from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _

from ...console.admin.queue_forms import SettingForm
from ...console.counts import MOST_HALTING, Count, grouped
from ...console.job_states import Key, Order
from ...console.parts import QueueOption, QueueSetting
from ...models import Job, Queue
from ...queue.fragments import joined
from ...queue.store import Store
from ...values.fact import Fact
from ...values.settings import LARGEST_LIMIT
from ..keyed.sql import distinct_keys_scan, indented, key_of, queues_with
from ..keyed.states import KeyNow, KeyState, counted, read_keys
from .columns import HOLDS, RANK
from .models import HOLDS_PERMIT, LIMIT_RANK
from .queues import limit_columns_of
from .sql import LIMITED, WAITS_FOR_PERMIT

# Sent by pages, commands, metrics, the doctor, alerts. Returns the halted sequences for which other jobs wait, the
# longest halted first: the key, the failed job, and the seconds since it failed. Reads the first `limit` failed jobs
# that halt a sequence, in the order in which they failed. Index: halted, and limit_waiting once per failed job.
HALTED_KEYS = """
SELECT failed.limit_key, failed.id, date_part('epoch', statement_timestamp() - failed.finished_at)
FROM (
    SELECT limit_key, id, finished_at
    FROM skipqueue_job
    WHERE status = 'failed' AND limit_kind = 'halting'
    ORDER BY finished_at, id
    LIMIT %(limit)s
) AS failed
WHERE EXISTS (
    SELECT
    FROM skipqueue_job
    WHERE gate = 'limit' AND limit_key = failed.limit_key
)
ORDER BY failed.finished_at, failed.id
"""

# Sent by pages, commands, metrics. Returns at most `limit` keys with waiting jobs, in alphabetical order after `after`.
# Index: limit_waiting, once per key.
WAITING_KEYS = joined(
    """
WITH RECURSIVE {waiting_key}
SELECT key FROM waiting_key
""",
    waiting_key=distinct_keys_scan(key="limit_key", waits=WAITS_FOR_PERMIT),
)

# Sent by the dashboard. Returns the keys of the first `limit` blocked jobs, at most `most`, in the order of each key's
# first job. Index: blocked.
FIRST_BLOCKED_KEYS = """
SELECT limit_key
FROM (
    SELECT id, limit_key, gate
    FROM skipqueue_job
    WHERE status = 'blocked'
    ORDER BY id
    LIMIT %(limit)s
) AS job
WHERE gate = 'limit'
GROUP BY limit_key
ORDER BY min(id)
LIMIT %(most)s
"""

# Sent by pages, commands. Returns one row for each of these keys that has waiting jobs:
# - the key;
# - the next job: its id, task and arguments;
# - the limit: its kind and its capacity; NULL means unlimited;
# - the number of jobs that hold a permit, and the number of waiting jobs, both counted up to `limit`;
# - the seconds since the first waiting job was due.
# Index: limit_waiting and limit_held, once for each key; for the key of a queue the primary key of queues.
KEYS_NOW = joined(
    """
SELECT
    key.name, head.id, head.task, head.args::text, head.kwargs::text, head.limit_kind, limited.permits,
    held.number, waiting.number, date_part('epoch', statement_timestamp() - waiting.since)
FROM
    unnest((SELECT %(keys)s::text[])) WITH ORDINALITY AS key (name, place),
    LATERAL (
        SELECT id, task, args, kwargs, limit_kind, capacity
        FROM skipqueue_job
        WHERE gate = 'limit' AND limit_key = key.name
        ORDER BY
            {rank}, id
        LIMIT 1
    ) AS head,
    {limited},
    LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT
            FROM skipqueue_job
            WHERE
                limit_key = key.name
                AND gate IS DISTINCT FROM 'ahead'
                AND {holds}
            LIMIT %(limit)s
        ) AS job
    ) AS held,
    LATERAL (
        SELECT count(*) AS number, min(run_after) AS since
        FROM (
            SELECT run_after
            FROM skipqueue_job
            WHERE gate = 'limit' AND limit_key = key.name
            ORDER BY
                {rank_within}, id
            LIMIT %(limit)s
        ) AS job
    ) AS waiting
ORDER BY key.place
""",
    limited=indented(joined(LIMITED, key="key.name", head="head"), 4),
    holds=indented(HOLDS, 16),
    rank=indented(RANK, 12),
    rank_within=indented(RANK, 16),
)


LIMIT_KINDS = {"concurrency": _("limit"), "sequence": _("sequence"), "halting": _("sequence"), "fair": _("fair order")}

NEXT_ADMITTED = Order((LIMIT_RANK,), False, _("next to be admitted first"))

NEXT_KEYS = 20
"""How many keys the dashboard reads, besides halted sequences, to find the jobs that have waited longest."""


MOST_FIRST_BLOCKED = 2_000
"""How many blocked jobs the dashboard reads, the oldest first, to find keys with waiting jobs."""


class HaltedKey(NamedTuple):
    key: str
    job_id: int
    """The job that failed."""
    seconds: float
    """Seconds since the job failed."""


@dataclass(frozen=True)
class LimitNow(KeyNow):
    kind: str
    capacity: int | None
    """`None` means unlimited, because somebody has removed the queue's limit."""
    held: int
    """The number of jobs that hold a permit. It is counted up to `MOST_JOBS_OF_KEY_COUNTED` + 1."""


@dataclass(frozen=True)
class LimitState(KeyState[LimitNow]):
    halted: HaltedKey | None
    """The failed job at which the sequence has halted."""

    @property
    def kind(self) -> str:
        return str(LIMIT_KINDS.get(self.current.kind, self.current.kind))

    @property
    def held(self) -> Count:
        return counted(self.current.held)

    @property
    def seconds(self) -> float:
        """How long the sequence has been halted; if it has not halted, how long the key's first job has waited."""
        return self.oldest if self.halted is None else self.halted.seconds


LIMIT_OF_KEY: tuple[Fact[LimitState], ...] = (
    Fact("key", _("key"), lambda state: state.masked),
    Fact("kind", _("kind"), lambda state: state.current.kind),
    Fact("state", _("state"), lambda state: state.halted and "halted", field=None),
    Fact("held", _("permits held"), lambda state: state.held, "jobs"),
    Fact("capacity", _("of"), lambda state: state.current.capacity, "jobs"),
    Fact("waiting", _("jobs wait"), lambda state: state.waiting, "jobs"),
    Fact("oldest", _("oldest job"), lambda state: state.oldest, "seconds", field="oldest_seconds"),
    Fact("next_job", "", lambda state: state.current.next_id),
    Fact("halted_by_job", "", lambda state: state.halted and state.halted.job_id),
    Fact("halted_seconds", "", lambda state: state.halted and state.halted.seconds),
)
"""The facts about one key of a limit or a sequence."""


def halted_keys(store: Store, *, limit: int = MOST_HALTING) -> list[HaltedKey]:
    """Return the halted sequences for which other jobs wait, the longest halted first.

    limit: how many failed jobs to read, the earliest failures first.
    """
    return [HaltedKey(*row) for row in store.rows(HALTED_KEYS, {"limit": limit})]


def waiting_keys(store: Store, *, after: str = "", limit: int) -> list[str]:
    """Return keys with waiting jobs, in alphabetical order after `after`."""
    return [key for (key,) in store.rows(WAITING_KEYS, {"after": after, "limit": limit})]


def first_blocked_keys(store: Store, *, most: int) -> list[str]:
    values = {"limit": MOST_FIRST_BLOCKED, "most": most}
    return [key for (key,) in store.rows(FIRST_BLOCKED_KEYS, values)]


def halted_by_key(store: Store) -> dict[str, HaltedKey]:
    """Return the first failed job of each halted sequence for which other jobs wait, the longest halted first."""
    first_halts: dict[str, HaltedKey] = {}
    for halt in halted_keys(store):
        first_halts.setdefault(halt.key, halt)
    return first_halts


def halted_states(store: Store, *, most: int) -> list[LimitState]:
    halted = halted_by_key(store)
    return limit_states(store, list(halted)[:most], halted=halted)


def first_states(store: Store, *, most: int) -> list[LimitState]:
    """Return the keys that need an operator most: halted sequences, then keys whose jobs have waited longest.

    If there are many keys, reads only the keys with the oldest jobs.
    """
    halted = halted_by_key(store)
    keys = [*list(halted)[:most], *first_blocked_keys(store, most=NEXT_KEYS), *waiting_keys(store, limit=NEXT_KEYS)]
    states = limit_states(store, dict.fromkeys(keys), halted=halted)
    return sorted(states, key=lambda state: (state.halted is None, -state.seconds))[:most]


def limit_states(store: Store, keys: Iterable[str], *, halted: Mapping[str, HaltedKey]) -> list[LimitState]:
    """Return the state of each of these keys that has waiting jobs, in the given order."""
    columns = ("kind", "capacity", "held", "waiting", "oldest")
    return [
        LimitState(current, halted.get(current.key)) for current in read_keys(store, KEYS_NOW, keys, LimitNow, *columns)
    ]


def key_of_limit(key: str) -> Key:
    """Return the filter for the jobs of this key. Index for waiting jobs: limit_waiting."""
    return Key("limit_key", key, "limit", NEXT_ADMITTED)


def holders_of(key: str) -> "QuerySet[Job]":
    """Return the jobs that hold a permit of this key. Index: limit_held."""
    return Job.objects.filter(HOLDS_PERMIT, Q(gate=None) | ~Q(gate="ahead"), limit_key=key)


def permits(limit_key: str, capacity: int | None) -> int | None:
    """Return how many of the key's jobs may be queued or running. `capacity`: the column of one of these jobs."""
    queue_name = limit_key.removeprefix(key_of(""))
    if queue_name == limit_key:  # not the key of a queue
        return capacity
    return QueueSetting(capacity, LIMITS.changed_in_row(queue_name)).value


class LimitForm(SettingForm):
    choice, typed = "limit", "number"
    any_number, this_value = _("any number"), _("this number:")

    limit = forms.ChoiceField(label=_("Jobs at once"))
    number = forms.IntegerField(
        label=_("Number"),
        help_text=_("Only for a number that is not in the list."),
        min_value=1,
        max_value=LARGEST_LIMIT,
        required=False,
        widget=AdminIntegerFieldWidget,
    )

    @classmethod
    def in_words(cls, value: int | None) -> str:
        return super().in_words(None if value is None else grouped(value))

    def problem(self, typed: int | None) -> Any:
        return "" if typed else _("How many?")


LIMITS = QueueOption(
    name="limit",
    column="concurrency",
    queues_in_settings=lambda: queues_with("concurrency"),
    by_settings=lambda name: (limit_columns_of(name).get("limit_key"), limit_columns_of(name).get("capacity")),
    form=LimitForm,
    change=Queue.limit,
    follow_settings=Queue.limit_by_settings,
    label=_("jobs at once"),
    is_always_shown=True,
    page="limit",
    button=_("Limit"),
    button_in_full=_("Limit the queue %(queue)s"),
    title=_("Limit the queue “%(queue)s”?"),
    heading=_("Limit the queue"),
    explanation=_(
        "At most this number of its jobs run at once, over all workers; the others wait. Jobs that run are left alone."
    ),
    unset_text=_('Its jobs can be limited once SKIPQUEUE["QUEUES"] names the queue, also with the number None.'),
    changed_message=_("Jobs of the queue “%(queue)s” that may run at once: %(value)s."),
    follows_settings_message=_("The queue “%(queue)s” uses the limit from the settings again."),
)
