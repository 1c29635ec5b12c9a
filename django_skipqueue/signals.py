"""The events of the queue, as Django signals.

Signals are sent with `send_robust`: the exception of a receiver is logged, and stops nothing. A receiver can be
connected for one sender only, such as one task. The sender is the task's name (`job_…`, `lease_lost`), the batch's name
(`batch_finished`), the worker's name (`worker_…`), the queue's name (`queue_…`), the rule (`alert_…`), the verb
(`jobs_operated`), or the alias of the queue's database (all other `jobs_…` signals). Signals about an outcome are sent
after the outcome is committed.
"""

import contextlib
import logging
from typing import Any, ClassVar

from django.dispatch import Signal

from .exceptions import JobInterrupted

logger = logging.getLogger("django_skipqueue")


class QueueSignal(Signal):
    """A signal whose senders are names. A receiver can be connected for one task: `sender=send_receipt`, or its name.

    Django compares senders by identity, and two equal strings may be different objects. So this class keeps one string
    object for each name, and replaces each sender by it.
    """

    _senders: ClassVar[dict[str, str]] = {}

    def connect(self, receiver: Any, sender: Any = None, weak: bool = True, dispatch_uid: Any = None) -> None:
        """Connect a receiver, as `Signal.connect` does."""
        if not hasattr(receiver, "__qualname__"):  # Django logs this attribute of a receiver that raises
            with contextlib.suppress(AttributeError, TypeError):
                receiver.__qualname__ = type(receiver).__qualname__
        if sender is not None:
            name = getattr(sender, "name", sender)
            sender = self._senders.setdefault(name, name)
        super().connect(receiver, sender, weak, dispatch_uid)

    def disconnect(self, receiver: Any = None, sender: Any = None, dispatch_uid: Any = None) -> bool:
        """Disconnect a receiver, as `Signal.disconnect` does."""
        return bool(super().disconnect(receiver, self._sender_object(sender), dispatch_uid))

    def has_listeners(self, sender: Any = None) -> bool:
        """Whether a receiver is connected for this sender, as `Signal.has_listeners` says."""
        return bool(self.receivers) and super().has_listeners(self._sender_object(sender))

    def send_robust(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        """Send the signal, as `Signal.send_robust` does."""
        return super().send_robust(self._sender_object(sender), **named)

    def _sender_object(self, sender: Any) -> Any:
        """The one string object for this sender's name, if a receiver is connected for it."""
        name = getattr(sender, "name", sender)
        return self._senders.get(name, name)


job_deferred = QueueSignal()
"""Jobs were inserted. Workers see the jobs once the caller's transaction commits. Carries `database`, `queue_name`,
`job_ids`."""

job_started = QueueSignal()
"""An attempt starts. Sent in the thread that runs it. Carries `database`, `job` (a `ClaimedJob`), `worker` (its name),
`wait_ms` (milliseconds between the due time and the start)."""

job_completed = QueueSignal()
"""The task returned. Carries `attempt` (an `Attempt`)."""

job_retrying = QueueSignal()
"""The attempt failed, or raised `Retry` or `Snooze`, and the job will run again. Carries `attempt` (an `Attempt`)."""

job_failed = QueueSignal()
"""The attempt failed, and the job will not be retried. Carries `attempt` (an `Attempt`)."""

job_discarded = QueueSignal()
"""The task raised `Discard`, or one of its `discard_on` errors. Carries `attempt` (an `Attempt`)."""

job_cancelled = QueueSignal()
"""An attempt has ended, and its job was cancelled while the attempt ran. Carries `attempt` (an `Attempt`)."""

job_recovered = QueueSignal()
"""A job was recovered from a dead worker. Carries `database`, and `job` (a `RecoveredJob`)."""

lease_lost = QueueSignal()
"""An outcome was not written, because the job had been taken from the worker. Carries `attempt` (an `Attempt`)."""

jobs_admitted = QueueSignal()
"""Jobs that are due were admitted to their queues. Carries `counts`, by the name of the queue."""

dependant_discarded = QueueSignal()
"""A job was discarded because another job, which had to complete first, did not complete. Carries `database`, and `job`
(a `Dependant`)."""

jobs_released = QueueSignal()
"""Claimed jobs were put back into their queues; no attempt is charged. Carries `job_ids`."""

jobs_operated = QueueSignal()
"""An operator changed jobs. The sender is the verb, such as `retry`. Carries `database`, `job_ids`, `by`, `reason`."""

jobs_pruned = QueueSignal()
"""Finished jobs were deleted. Carries `counts`, by status."""

batch_finished = QueueSignal()
"""The last job of a batch is finished, and the batch's callbacks are enqueued. The sender is the batch's name, which
may be empty. Carries `database`, and `batch` (a `FinishedBatch`)."""

worker_started = QueueSignal()
"""A worker process is about to claim its first job. Carries `worker_id`, `queue_names`, `concurrency`."""

worker_stopped = QueueSignal()
"""A worker process ends. Jobs that still run are released after this signal. Carries `worker_id`, `jobs_done`."""

queue_paused = QueueSignal()
"""Somebody paused a queue. The sender is the queue's name. Carries `database`, `until` (`None`: no end), `by`,
`reason`."""

queue_resumed = QueueSignal()
"""Somebody resumed a queue. The sender is the queue's name. Carries `database`, `by`."""

alert_raised = QueueSignal()
"""A problem in a queue has begun. The sender is the code of the rule. Carries `database`, `subject` (the queue,
task or key that has the problem; may be empty), `severity`, `title`, `since`."""

alert_over = QueueSignal()
"""A problem is over. The sender is the code of the rule. Carries the values that `alert_raised` carries, and
`over_at`."""


def emit(signal: Signal, sender: str, **event: Any) -> None:
    """Send `signal` to its receivers, and log their exceptions: even SystemExit, which `send_robust` would let through.

    Raises only `JobInterrupted`, which interrupts the attempt in whose thread the receiver runs.
    """
    try:
        for receiver, error in signal.send_robust(sender, **event):
            if isinstance(error, BaseException):
                name = getattr(receiver, "__qualname__", repr(receiver))
                logger.error("The signal receiver %s raised: %r", name, error, exc_info=error)
    except JobInterrupted:
        raise
    except BaseException as error:
        with contextlib.suppress(BaseException):  # the project's logging may be what raised
            logger.error("A signal receiver raised: %r", error, exc_info=error)
