"""The steps of one attempt: each step calls its function, unless the job already has the step's result.

The attempt's thread uses this module; several threads do if the task starts threads, or is an `async def`. Invariant:
an attempt uses each name once, so that a name stands for one step of the job.
"""

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from ...conf import settings
from ...events.log_format import job_name
from ...exceptions import InvalidArguments, InvalidOption, LeaseLost, SignalTimeout, UnstorableResult
from ...queue.store import Store
from ...values.codec import decode
from ...values.outcomes import Delay, EndAttempt, Outcome, checked_seconds
from .record import Entry, RecordedStep, record_step, steps_of, take_signal
from .signals import as_stored_json, check_name

if TYPE_CHECKING:
    from ...jobs.codecs import Codec
    from ...jobs.context import AttemptHandle
    from .each import Cursor

_after_records: list[Callable[[str], None]] = []
"""Called with the name of each step once its record is committed."""


@contextmanager
def calling_after(step: str, call: Callable[[], None]) -> Iterator[None]:
    """Within the `with` block, call `call` after each record of this step. See `Part.after_step`."""

    def called(name: str) -> None:
        if name == step:
            call()

    _after_records.append(called)
    try:
        yield
    finally:
        _after_records.remove(called)


METHODS = {"step": "step", "sleep": "sleep", "wait": "wait", "run": "run or run_all", "each": "each"}
"""The methods of `JobContext`, by the kind of the step."""


class AttemptSteps:
    """The steps that one attempt reads and records. The worker calls it as a `PartOfAttempt`."""

    def __init__(self, running: "AttemptHandle") -> None:
        self.store = Store(running.database)
        self.ref = running.job.ref
        self._running = running
        self._ended: EndAttempt | None = None
        self._used: set[str] = set()
        self._cursors: list[Cursor] = []
        self._is_reset = False
        """Whether a record of this attempt has reset the row of the job, and is committed."""
        recorded = steps_of(self.store, running.job.id)
        self._recorded = {step.name: step for step in recorded}
        self._loaded_at = time.monotonic()
        self._numbers = {step.name: step.number for step in recorded}
        # The attempts before this attempt. The last record has set the row's number of attempts to 1, so the row counts
        # only the attempts since the last record.
        self._earlier_attempts = max((step.attempt for step in recorded), default=1) - 1

    # The methods of `JobContext`

    def step(
        self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, atomic: bool
    ) -> Any:
        """Return the recorded result of the step; if there is none, call the function and record its result."""
        check_function(name, function, args, kwargs)
        codec = result_type(function)
        if recorded := self.begin(name, "step"):
            return decoded(name, recorded.result, codec)
        self.end_if_stopping()
        with transaction.atomic(using=self.store.alias) if atomic else nullcontext():
            started = time.monotonic()
            result = function(*args, **kwargs)
            stored = encoded(name, result, codec)
            entry = self.record(name, "step", seconds=time.monotonic() - started, result=stored)
        self.note_recorded(entry)
        return as_stored(result, stored, codec)

    async def astep(
        self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """`step` for an `async def` function."""
        check_function(name, function, args, kwargs)
        codec = result_type(function)
        if recorded := self.begin(name, "step"):
            return await sync_to_async(decoded)(name, recorded.result, codec)
        self.end_if_stopping()
        started = time.monotonic()
        result = await function(*args, **kwargs)

        def record_result() -> Any:
            stored = encoded(name, result, codec)
            self.note_recorded(self.record(name, "step", seconds=time.monotonic() - started, result=stored))
            return as_stored(result, stored, codec)

        return await sync_to_async(record_result)()

    def sleep(self, name: str, delay: Delay) -> None:
        """Return if the sleep is over; otherwise end the attempt. The next attempt begins when the sleep is over."""
        seconds = checked_seconds("delay", delay)
        self.require_no_transaction("sleep", name)
        recorded = self.begin(name, "sleep")
        seconds_left = seconds
        if recorded is None:
            self.note_recorded(self.record(name, "sleep", delay=seconds))
        else:
            seconds_left = (recorded.left or 0.0) - (time.monotonic() - self._loaded_at)
        if seconds_left > 0:
            self.end_attempt(Outcome("scheduled", delay=seconds_left, refund=1))

    def wait(self, name: str, timeout: Delay | None) -> Any:
        """Return the payload of the signal. If the signal has not come, end the attempt, or raise `SignalTimeout`."""
        seconds = None if timeout is None else checked_seconds("timeout", timeout)
        self.require_no_transaction("wait", name)
        wait_record = self.begin(name, "wait")
        if wait_record is None or not wait_record.is_over:
            self.end_if_stopping()
            entry = self.entry(name, "wait", delay=seconds)
            wait_record = take_signal(self.store, self.ref, entry)
            self.require_lease(wait_record)
            self.note_recorded(entry)
        assert wait_record is not None  # noqa: S101 (for the type checker)
        if not wait_record.is_over:
            self.hold_job()
        if wait_record.error is not None:
            raise SignalTimeout(f"The signal {name!r} did not come in time.")
        return None if wait_record.result is None else decode(wait_record.result)

    # What the methods above, loops and children use

    def begin(self, name: str, kind: str) -> RecordedStep | None:
        """Use this name. Returns the step's record, if any. Raises `InvalidOption` if the name cannot be used."""
        if self._ended is not None:  # the task has caught this exception, and must not go on
            raise self._ended
        check_name(name)
        if name in self._used:
            raise InvalidOption(
                f"Two steps of one attempt are called {name!r}: a name stands for one step. In a loop, put what "
                'differs into it, as in f"mail {customer.pk}".'
            )
        recorded = self._recorded.get(name)
        if recorded is not None and recorded.kind != kind:
            raise InvalidOption(
                f"{name!r} is recorded for this job by {METHODS.get(recorded.kind, recorded.kind)}, and the task now "
                f"uses it for {METHODS[kind]}. Give the new step another name."
            )
        self._used.add(name)
        return recorded

    def end_if_stopping(self) -> None:
        """If the worker is stopping, end the attempt, so that the worker releases the job."""
        if self._running.is_stopping and not self.is_in_transaction():
            self.end_attempt(Outcome("scheduled", refund=1, is_release=True))

    def end_attempt(self, outcome: Outcome) -> NoReturn:
        self._ended = EndAttempt(outcome)
        raise self._ended

    def hold_job(self) -> NoReturn:
        """End the attempt. The settle then blocks the job, because its row says that it is held."""
        self.end_attempt(Outcome("scheduled", refund=1, is_held=True))

    def entry(self, name: str, kind: str, **values: Any) -> Entry:
        """Return what to write about a step. A step that is written again keeps its number."""
        number = self._numbers.setdefault(name, max(self._numbers.values(), default=0) + 1)
        attempt_in_all = self._earlier_attempts + self._running.job.attempt
        return Entry(
            name=name,
            kind=kind,
            number=number,
            attempt=attempt_in_all,
            resets=attempt_in_all + self._running.job.max_attempts - 1 <= settings.max_attempts_in_all,
            by=self._running.worker,
            needs_no_reset=self._is_reset and kind != "run",  # a step that runs children has held the job
            **values,
        )

    def record(self, name: str, kind: str, **values: Any) -> Entry:
        """Record a step in the open transaction, or at once if none is open. Raises `LeaseLost`."""
        entry = self.entry(name, kind, **values)
        self.require_lease(record_step(self.store, self.ref, entry))
        return entry

    def note_recorded(self, entry: Entry | None) -> None:
        """Note that a record was written. Once it is committed, reset the number of attempts if the entry says so."""
        if entry is None:
            return
        if entry.resets and self.is_in_transaction():
            transaction.on_commit(self._reset, using=self.store.alias)
        elif entry.resets:
            self._reset()
        for call in _after_records:
            call(entry.name)

    def _reset(self) -> None:
        self._is_reset = True
        job = self._running.job
        self._earlier_attempts += job.attempt - 1
        self._running.job = job._replace(attempt=1)

    def require_lease(self, held: object) -> None:
        if not held:
            id, lease = self.ref
            raise LeaseLost(f"Job {job_name(self.store.alias, id)} is no longer held by lease {lease}.")

    def add_cursor(self, cursor: "Cursor") -> None:
        self._cursors.append(cursor)

    # What the worker calls at the end of an attempt: see `PartOfAttempt`

    def raised(self) -> None:
        """Write the cursors. If a cursor has moved, its write resets the number of attempts."""
        self._write_cursors(self.store)

    def ended(self, outcome: Outcome) -> Outcome:
        """Return the outcome of the attempt: that of `EndAttempt`, even if the task has caught this exception."""
        if self._ended is None or self._running.completed is not None:
            return outcome
        return self._ended.outcome

    def released(self, store: Store) -> None:
        """Write the cursors."""
        self._write_cursors(store)

    def _write_cursors(self, store: Store) -> None:
        for cursor in self._cursors:
            with suppress(Exception):  # the items since the last write are run again
                if (entry := cursor.write(store)) is not None and entry.resets:
                    self._reset()

    def is_in_transaction(self) -> bool:
        """Return whether the task has opened a transaction. The transaction of a `TestCase` does not count."""
        return any(not getattr(block, "_from_testcase", False) for block in connections[self.store.alias].atomic_blocks)

    def require_no_transaction(self, method: str, name: str) -> None:
        if self.is_in_transaction():
            raise InvalidOption(
                f"{method}({name!r}) ends the attempt, and would roll back the transaction that is open. Call it "
                "outside of transaction.atomic()."
            )


def check_function(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise `InvalidOption` if a step cannot call this function with these arguments."""
    if not callable(function):
        raise InvalidOption(f"The step {name!r} needs a function and its arguments, not {function!r}.")
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except ValueError:  # a function written in C may have no signature
        return
    except TypeError as error:
        raise InvalidOption(f"The step {name!r} cannot call {function!r}: {error}.") from None


def result_type(function: Callable[..., Any]) -> "Codec | None":
    """Return the type of the function's return annotation; `None` stands for plain JSON."""
    from ...jobs.annotations import annotations_of, codec_of  # imports Django's models, which load after this module

    return codec_of(annotations_of(function).get("return"))


def encoded(name: str, result: Any, codec: "Codec | None") -> str | None:
    """Return the result of a step as JSON. Raises `UnstorableResult`, after which the job is not retried."""
    if result is None:
        return None
    what = f"The result of the step {name!r}"
    try:
        return as_stored_json(what, result if codec is None else codec.encode(what, result))
    except InvalidArguments as error:
        raise UnstorableResult(str(error)) from None


def as_stored(result: Any, stored: str | None, codec: "Codec | None") -> Any:
    """Return the result as the next attempt gets it. Without a codec, JSON may turn a tuple into a list."""
    return result if stored is None or codec is not None else decode(stored)


def decoded(name: str, stored: str | None, codec: "Codec | None") -> Any:
    """Return a recorded result in the type of the annotation. Raises `UndecodableArguments` if it does not fit."""
    if stored is None:
        return None
    result = decode(stored)
    return result if codec is None else codec.decode(f"The result of the step {name!r}", result)
