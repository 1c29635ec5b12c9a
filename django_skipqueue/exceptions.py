"""The exceptions of this app. The docstring of each is its default message."""


class SkipQueueError(Exception):
    """The job queue could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.__doc__)


class InvalidTask(SkipQueueError):
    """A function cannot be a task as it stands."""


class DuplicateTask(SkipQueueError):
    """Two functions are registered as tasks under one name."""


class UnknownTask(SkipQueueError):
    """No task is registered under this name."""


class InvalidArguments(SkipQueueError, TypeError):
    """The arguments do not fit the task, or cannot be stored as JSON."""


class UnstorableResult(InvalidArguments):
    """The task returned what is not JSON, or is larger than `MAX_RESULT_BYTES`."""


class InvalidOption(SkipQueueError, ValueError):
    """An option of a task or of a job has a value that cannot be used."""


class LeaseLost(SkipQueueError):
    """The lease is no longer valid: the job was recovered, settled, released, retried or discarded in between."""


class CannotComplete(SkipQueueError):
    """A task cannot complete its job here: there is no transaction to share, or no worker that runs the job."""


class BatchFinished(SkipQueueError):
    """The last job of a batch is finished, so no job can be added to it."""


class JobInterrupted(BaseException):
    """The attempt was interrupted."""

    # Not an Exception: a task's own `except Exception` must not keep it running.

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.__doc__)


class JobTimeout(JobInterrupted):
    """The attempt ran for longer than its task's timeout."""


class JobCancelled(JobInterrupted):
    """The job was cancelled, or taken from its worker, while the attempt ran."""


class WorkerDied(SkipQueueError):
    """The worker process ended while it ran the job, or wrote no heartbeat within the worker timeout."""


class RecordedError(SkipQueueError):
    """An error that was recorded in another thread or process. The message is its traceback."""


class QueueUnavailable(SkipQueueError):
    """The queue's database cannot be used."""


class UndecodableArguments(SkipQueueError):
    """The stored arguments of the job do not fit the annotations of its task."""


class RowMissing(SkipQueueError):
    """A row that was passed to the task as a model instance does not exist any more."""
