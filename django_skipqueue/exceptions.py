"""The exceptions of this app. The docstring of each exception is its default message."""

from inspect import cleandoc


class SkipQueueError(Exception):
    """The job queue could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or cleandoc(self.__doc__ or ""))


class InvalidTask(SkipQueueError):
    """A function cannot be a task as it stands."""


class DuplicateTask(SkipQueueError):
    """Two functions are registered as tasks under one name."""


class UnknownTask(SkipQueueError):
    """No task is registered under this name."""


class InvalidArguments(SkipQueueError, TypeError):
    """The arguments do not fit the task, or cannot be stored as JSON."""


class FlattenedValue(InvalidArguments):
    """An argument would arrive as a value of a plainer type, such as the plain value of an enumeration's member."""


class UnstorableResult(InvalidArguments):
    """The task, or a step of it, returned a value that is not JSON, or that is larger than `MAX_RESULT_BYTES`."""


class InvalidOption(SkipQueueError, ValueError):
    """An option of a task or of a job has a value that cannot be used."""


class UniqueKeyTaken(SkipQueueError):
    """A job holds the unique key of this call, and `on_conflict` is "raise". Nothing was written."""

    def __init__(self, message: str | None = None, *, job_id: int | None = None, handle: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id
        """The id of the job that holds the key; `None` if two calls of the same `defer_many` have the key."""
        self.handle = handle
        """The handle of this job, such as `queue_1:42`, which also names the database; `None` if `job_id` is `None`."""


class UniqueKeyDeadlock(SkipQueueError):
    """Two transactions enqueue or retry jobs with the same unique keys in opposite order, so each waits for the other.

    PostgreSQL has ended this one; roll it back, and try it again. To avoid it, enqueue in the order of the keys, all at
    once by defer_many or one retry, which sort them, or after the commit by transaction.on_commit.
    """


class LeaseLost(SkipQueueError):
    """The lease is no longer valid: the job was recovered, settled, released, retried or discarded in between."""


class CannotComplete(SkipQueueError):
    """A task cannot complete its job here: there is no transaction to share, or no worker that runs the job."""


class BatchFinished(SkipQueueError):
    """The last job of a batch is finished, so no job can be added to it."""


class ResultLost(SkipQueueError):
    """A job that this one has waited for was deleted, or pruned, and its result with it."""


class StepFailed(SkipQueueError):
    """A step of the job has failed for good, and this is recorded: another attempt would find the same."""


class SignalTimeout(StepFailed):
    """The signal that the job has waited for did not come in time."""


class ChildFailed(StepFailed):
    """A job that a step has deferred did not complete."""

    def __init__(
        self, message: str | None = None, *, job_id: int | None = None, error: str = "", job_ids: tuple[int, ...] = ()
    ) -> None:
        super().__init__(message)
        self.job_id = job_id
        """The id of the first child that did not complete."""
        self.error = error
        """The last error of this child, in one line."""
        self.job_ids = job_ids
        """The ids of all children that did not complete."""


class JobInterrupted(BaseException):
    """The attempt was interrupted."""

    # A BaseException, so that a task's own `except Exception` does not catch it.

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.__doc__)


class JobTimeout(JobInterrupted):
    """The attempt ran for longer than its task's timeout."""


class JobCancelled(JobInterrupted):
    """The job was cancelled, or taken from its worker, while the attempt ran."""


class CrashedByTest(BaseException):
    """A test has ended the attempt here, as the death of its worker would."""


class WorkerDied(SkipQueueError):
    """The worker process ended while it ran the job, or wrote no heartbeat within the worker timeout."""


class UnreadableOutcome(SkipQueueError):
    """An external worker ran a job, but its outcome cannot be read. Update the older of the two sides."""


class MessageTooLarge(SkipQueueError):
    """The message of a job for an external worker, or of its outcome, is too large. Pass less, or return less."""


class RecordedError(SkipQueueError):
    """An error that was recorded in another thread or process. The message is its traceback."""


class QueueUnavailable(SkipQueueError):
    """The queue's database cannot be used."""


class UndecodableArguments(SkipQueueError):
    """The stored arguments of the job do not fit the annotations of its task."""


class UnreadableArguments(UndecodableArguments):
    """The stored arguments of the job are not a list and a dict that Python can read. The job fails for good."""


class RowMissing(SkipQueueError):
    """A row that was passed to the task as a model instance does not exist any more."""
