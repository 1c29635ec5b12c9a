"""The methods that admit jobs by the limits of their keys, and that limit queues."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from django.db import DatabaseError, connections, transaction
from psycopg.pq import TransactionStatus

from ..admission import sql
from ..admission.queues import key_of
from ..columns import check_columns
from ..events.events import JobsAdmitted, QueueLimited
from ..events.sinks import Send, send
from ..exceptions import InvalidOption
from ..values.queue_settings import CONCURRENCY, is_concurrency
from .notify import LIMITS_PAYLOAD, QUEUES_PAYLOAD, notify_supervisors, wake
from .parameters import Admitted, Statement, as_array, noted, pipelined
from .statements import BATCH, Statements

KEYS_AT_ONCE = 1_000
"""Keys that are admitted in one transaction, at most."""


def admission(ids: Iterable[int], keys: Iterable[str]) -> list[Statement | None]:
    """The two statements that admit jobs of the keys of these jobs, and of these keys."""
    return [(sql.LOCK_KEYS, {"ids": as_array(ids), "keys": sorted(set(keys))}), (sql.ADMIT_BY_KEY, {})]


class Limiting(Statements):
    """Used after a key has changed: by enqueues, the time gate and the sweep. A worker admits with its exchange."""

    def admit_keys(self, keys: Collection[str]) -> Admitted:
        """Admit jobs of these keys, as far as permits are free. Notifies nobody.

        In a transaction of the caller the keys stay locked until its end.
        """
        connection = self.connection
        connection.ensure_connection()
        raw = connection.connection
        is_alone = raw.autocommit and raw.info.transaction_status == TransactionStatus.IDLE
        first: list[Statement | None] = [(sql.ADMIT_WITHOUT_WAITING, {})] if is_alone else []
        with connection.wrap_database_errors:
            *_, locked, admitted = pipelined(raw, [*first, *admission((), keys)], None)
            return Admitted.decode(locked, admitted)

    def blocked_keys(self, *, after: str = "", limit: int = KEYS_AT_ONCE) -> dict[str, bool]:
        """At most `limit` keys with blocked jobs, alphabetically after `after`: whether a permit of each is free."""
        return dict(self.rows(sql.BLOCKED_KEYS, {"after": after, "limit": limit}))

    def limit_queue(self, name: str, concurrency: int | None, *, by: str = "") -> None:
        """Let at most so many jobs of this queue run at once; `None`: any number. Those that run, run on.

        Raises `InvalidOption` for a value that cannot be used.
        """
        if not is_concurrency(concurrency):
            raise InvalidOption(f"concurrency must be {CONCURRENCY}, or None for any number, not {concurrency!r}.")
        self._set_limit(name, concurrency or 0, by)

    def limit_queue_by_settings(self, name: str, *, by: str = "") -> None:
        """Let the limit of the settings hold again for this queue."""
        self._set_limit(name, None, by)

    def _set_limit(self, name: str, concurrency: int | None, by: str) -> None:
        check_columns({"queue_name": name})
        stored_by = noted(by, "")["by"]
        self.execute(sql.LIMIT_QUEUE, {"name": name, "concurrency": concurrency})
        admit_after_commit(self, [key_of(name)])
        notify_supervisors(self, QUEUES_PAYLOAD)  # for `block_surplus`
        notify_supervisors(self, LIMITS_PAYLOAD)  # for more than are admitted at once
        self.send(QueueLimited(self.alias, name, concurrency, stored_by))

    def block_surplus(self, *, limit: int = BATCH) -> int:
        """Have up to `limit` queued jobs beyond the limits of their queues wait again. Returns the number."""
        ((number,),) = self.rows(sql.BLOCK_SURPLUS, {"limit": limit})
        return int(number)


def admit_all(store: Statements, keys: Sequence[str], *, is_sweep: bool = False) -> dict[str, int]:
    """Admit jobs of these keys in batches. Returns their number, by queue. Notifies nobody of these jobs.

    The supervisors are notified of a key that another transaction has locked, to look again; a sweep comes again.
    """
    admitted: Counter[str] = Counter()
    limiting = Limiting(store.alias, send=store.send)
    is_missed = False
    for start in range(0, len(keys), KEYS_AT_ONCE):
        counts, missed = limiting.admit_keys(keys[start : start + KEYS_AT_ONCE])
        admitted.update(counts)
        is_missed = is_missed or bool(missed)
    if is_missed and not is_sweep:
        notify_supervisors(store, LIMITS_PAYLOAD)
    return dict(admitted)


@dataclass
class Admission:
    """Admits jobs of these keys, once the transaction that enqueued them is committed."""

    database: str
    send: Send = send
    keys: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.__qualname__ = type(self).__qualname__  # Django's log line about a hook that fails has it

    def __call__(self) -> None:
        """Admit now. What fails here, or is locked, a supervisor does: it is notified."""
        store = Statements(self.database, send=self.send)
        try:
            admitted = admit_all(store, sorted(self.keys))
        except DatabaseError:
            notify_supervisors(store, LIMITS_PAYLOAD)
            raise  # Django logs it: the caller's rows are committed
        wake(store, admitted)
        if admitted:
            self.send(JobsAdmitted(self.database, admitted))


def admit_after_commit(store: Statements, keys: Collection[str]) -> None:
    """Admit jobs of these keys after the caller's transaction is committed.

    Not within it: its locks of the keys would stop all other jobs of these keys until its end.
    """
    connection = connections[store.alias]
    if not connection.get_autocommit() and not connection.in_atomic_block:
        notify_supervisors(store, LIMITS_PAYLOAD)  # the caller manages the transaction by hand: there is no hook
        return
    for _, hook, *_ in connection.run_on_commit:
        if isinstance(hook, Admission) and hook.database == store.alias:
            hook.keys.update(keys)
            return
    transaction.on_commit(Admission(store.alias, store.send, set(keys)), using=store.alias, robust=True)
