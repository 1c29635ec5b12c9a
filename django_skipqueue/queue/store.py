"""`Store`: the queue of one database, with a method for everything that is done to a job."""

from ..conf import settings
from . import claim as claims
from . import gates, leases, notes, operate, workers
from . import prune as prunes
from . import recover as recoveries
from . import release as releases
from . import settle as settles
from .enqueue import Enqueueing

__all__ = ["Store"]


class Store(Enqueueing):
    """The queue of one database: `Store("default")`.

    Its methods run on this thread's connection; most run one statement. A store is passed to its users as an argument.
    Its methods give their events to `send`: by default to the sinks, at once, in the caller's thread and transaction.
    """

    @classmethod
    def default(cls) -> "Store":
        """The queue of the database that `SKIPQUEUE["DATABASE"]` names."""
        return cls(settings.database)

    # A job waits at gates, which admit it.
    admit = gates.admit
    next_due = gates.next_due

    # A worker claims it.
    queues_with_jobs = claims.queues_with_jobs
    claim = claims.claim
    take_over = claims.take_over

    # It runs, as long as its worker writes heartbeats.
    heartbeat_workers = workers.heartbeat_workers
    heartbeat_worker = workers.heartbeat_worker
    heartbeats = workers.heartbeats
    request_of_worker = workers.request_of_worker
    delete_workers = workers.delete_workers
    prune_workers = workers.prune_workers
    heartbeat_job = leases.heartbeat_job
    lost_leases = leases.lost_leases
    locked = leases.locked
    note_attempts = notes.note_attempts
    note_begun = notes.note_begun

    # Its attempt comes to an outcome.
    settle = settles.settle
    exchange = settles.exchange
    append_cancelled_errors = settles.append_cancelled_errors

    # Or it is given back, or its worker dies.
    release = releases.release
    release_orphans = releases.release_orphans
    end_sessions = recoveries.end_sessions
    still_holding = leases.still_holding
    recover = recoveries.recover
    recover_without_worker = recoveries.recover_without_worker
    recover_returned = recoveries.recover_returned

    # Operators change it.
    retry = operate.retry
    discard = operate.discard
    cancel = operate.cancel
    run_now = operate.run_now
    postpone = operate.postpone
    reschedule = operate.reschedule
    change_queue = operate.change_queue
    change_priority = operate.change_priority

    # It is deleted after its retention.
    prune = prunes.prune
    expired = prunes.expired
    prune_lag = prunes.prune_lag
