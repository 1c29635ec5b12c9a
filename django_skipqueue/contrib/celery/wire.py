"""Encode jobs and attempts as JSON messages for a carrier, and decode the messages that come back.

Jobs and outcomes arrive exactly as they were sent, except values that only one process can use: times of its monotonic
clock, and the exception object. Large arguments are not sent back with an outcome, because only signal receivers would
read them, and a relay keeps many outcomes in memory.

A relay and a Celery worker of different versions either agree on `WIRE_FORMAT` or raise `UnknownFormat`. The type and
range of each field are checked, and nothing is guessed.

`add_outcomes` and `returned_job` never raise, whatever a message contains. Anybody with access to the broker can send
anything, and a message that made a relay die would be delivered again. A message that cannot be read becomes a
`ReturnedJob` with a `problem`.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from operator import contains
from typing import Any, NamedTuple, NoReturn, TypeGuard, get_args, get_type_hints

from ...values.bounds import MAX_KEY_BYTES
from ...values.outcomes import ERROR_NAME_LIMIT, LONGEST_DELAY, Outcome
from ...values.records import LARGEST_ID, LEFT_OUT, MOST_DIGITS, Attempt, ClaimedJob, LeaseRef
from .carrier import BegunJob, ReturnedJob, ReturnedOutcome, Taken

WIRE_FORMAT = 1
"""The version of the message format."""

_JOB_FIELDS = tuple(name for name in ClaimedJob._fields if name not in ("is_suspect", "permit_key", "claimed_at"))
_OUTCOME_FIELDS = ("status", "delay", "refund", "result", "last_error", "error", "is_unknown", "is_held", "notes")


class _Kind(NamedTuple):
    """The allowed types and range of a field. NaN and infinite numbers are never in range."""

    types: tuple[type, ...]
    least: float = 0
    most: float = 0
    """The largest number, or the longest text in bytes; 0 means unlimited."""


MOST_SECONDS_IN_MESSAGE = 1e9
"""The longest time in a message, in seconds."""

LATEST_TIME = 253_402_300_800
"""The end of the year 9999, in seconds since the epoch. A job's time is between this and its negative."""

_INT, _REAL = (int,), (int, float)
_ID, _COUNT, _FLAG = _Kind(_INT, 0, LARGEST_ID), _Kind(_INT, -(2**15), 2**31 - 1), _Kind((bool,))
_TIME, _NUMBER = _Kind(_REAL, -LATEST_TIME, LATEST_TIME), _Kind(_REAL, -1e15, 1e15)
_TEXT, _NAME = _Kind((str,)), _Kind((str,), most=MAX_KEY_BYTES)
_ERROR_NAME = _Kind((str,), most=4 * ERROR_NAME_LIMIT)  # a character has at most four bytes


def _or_none(kind: _Kind) -> _Kind:
    return kind._replace(types=(*kind.types, type(None)))


class _Form:
    """The allowed types and ranges of the fields of a list."""

    def __init__(self, *kinds: _Kind) -> None:
        self._types = [kind.types for kind in kinds]
        limited_kinds = [(place, kind) for place, kind in enumerate(kinds) if kind.most]
        self._ranges = [(place, kind.least, kind.most) for place, kind in limited_kinds if str not in kind.types]
        self._names = [(place, kind.most) for place, kind in limited_kinds if str in kind.types]

    def fits(self, values: object) -> TypeGuard[Sequence[Any]]:
        """Return whether each value has an allowed type and range, and PostgreSQL can store the texts.

        `True` and `False` do not count as numbers.
        """
        if not isinstance(values, list | tuple) or len(values) != len(self._types):
            return False
        if not all(map(contains, self._types, map(type, values))):
            return False
        for place, least, most in self._ranges:
            value = values[place]
            if value is not None and not least <= value <= most:
                return False
        text = "".join([value for value in values if type(value) is str])
        try:
            size = len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError:  # half of a surrogate pair
            return False
        # If all texts together are shorter than the shortest limit, no text needs to be measured.
        return "\0" not in text and (
            size <= 4 * ERROR_NAME_LIMIT or all(len(values[place].encode()) <= most for place, most in self._names)
        )


_JOB = _Form(  # in the order of `_JOB_FIELDS`
    *(_ID, _ID, _NAME, _NAME, _TEXT, _TEXT, _COUNT, _COUNT, _Kind(_INT, -100, 100), _TIME, _TIME, _TEXT),
    *(_or_none(_Kind(_REAL, 0, sys.float_info.max)), _or_none(_TIME), _FLAG, _NUMBER),
)
_OUTCOME = _Form(  # in the order of `_OUTCOME_FIELDS`
    *(_TEXT, _Kind(_REAL, 0, LONGEST_DELAY.total_seconds()), _Kind(_INT, 0, 1), _or_none(_TEXT), _or_none(_TEXT)),
    *(_or_none(_Kind((dict,))), _FLAG, _FLAG, _or_none(_TEXT)),
)
_HOME, _FORMAT = _Form(_NAME), _Form(_COUNT)
_ATTEMPT_REST = _Form(_NAME, _NAME, _Kind(_REAL, 0, MOST_SECONDS_IN_MESSAGE), _FLAG)
"""The fields of an attempt besides its job and outcome: the alias, the worker, the duration, and `is_written`."""

_ERROR_KINDS = {
    "exception": _ERROR_NAME,
    "message": _TEXT,
    "traceback": _TEXT,
    "attempt": _COUNT,
    "worker": _NAME,
    "duration_ms": _NUMBER,
    "wait_ms": _NUMBER,
    "place": _ERROR_NAME,
    "line": _or_none(_COUNT),
}
"""The fields of an error, as made by `error_entry`. Fields of the kind `_ERROR_NAME` become part of a primary key."""

_ERROR_NEEDS = frozenset({"exception", "message", "traceback"})

_STATUSES = frozenset(get_args(get_type_hints(Outcome)["status"]))

ARGUMENTS_SENT_BACK = 10_000
"""Arguments up to this number of characters are sent back with an outcome."""

BEGUN = "begun"
"""A message contains this text instead of an attempt to say that a job begins: see `encode_begun`."""

_ID_PREFIX = "skipqueue-"


class EncodedOutcome(NamedTuple):
    home: str
    id: str
    """See `message_id`."""
    body: bytes
    """See `attempt_to_wire`."""

    @property
    def size(self) -> int:
        """The size in bytes of a message with only this outcome."""
        return len(self.id) + len(self.body) + len(b'[["",]]')


class UnknownFormat(Exception):
    """The message comes from another version of django_skipqueue, or from another sender."""


def message_id(home: str, ref: LeaseRef) -> str:
    """Return the id of the message for a job under one lease. It is also Celery's task id."""
    return f"{_ID_PREFIX}{home}-{ref[0]}-{ref[1]}"


def lease_ref_of(message_id: object) -> LeaseRef | None:
    """Return the job id and lease in the id of a message; `None` if the message is not about a job."""
    if not isinstance(message_id, str) or not message_id.startswith(_ID_PREFIX):
        return None
    _, *numbers = message_id.rsplit("-", 2)
    if len(numbers) < 2 or not all(number.isdecimal() and len(number) <= MOST_DIGITS for number in numbers):
        return None
    id, lease = map(int, numbers)
    return (id, lease) if max(id, lease) <= LARGEST_ID else None


def without_large_arguments(job: ClaimedJob, most: int = ARGUMENTS_SENT_BACK) -> ClaimedJob:
    """Return the job, with `LEFT_OUT` instead of arguments that have more than `most` characters."""
    return job if len(job.args) + len(job.kwargs) <= most else job._replace(args=LEFT_OUT, kwargs=LEFT_OUT)


def job_to_wire(job: ClaimedJob, home: str) -> list[Any]:
    """Return a message's content: the format, the place for the job's outcome, and the job's fields."""
    return [WIRE_FORMAT, home, *job[: len(_JOB_FIELDS)]]


def job_from_wire(payload: object) -> tuple[ClaimedJob, str]:
    """Return the job, and the place for its outcome. Raises `UnknownFormat`."""
    _format, home, *fields = _checked_fields(payload, 2 + len(_JOB_FIELDS))
    if not _HOME.fits([home]):
        raise UnknownFormat("The message does not say where to send the outcome.")
    return _job_of_fields(fields), home


def attempt_to_wire(attempt: Attempt) -> list[Any]:
    """Return a message's content: format, database, job, outcome, worker, seconds, and `is_written`."""
    job = without_large_arguments(attempt.job)[: len(_JOB_FIELDS)]
    outcome = [getattr(attempt.outcome, name) for name in _OUTCOME_FIELDS]
    duration = attempt.ended - attempt.started
    return [WIRE_FORMAT, attempt.database, list(job), outcome, attempt.worker, duration, attempt.is_written]


def encode_outcome(attempt: Attempt, home: str) -> EncodedOutcome:
    return EncodedOutcome(home, message_id(home, attempt.job.ref), encode(attempt_to_wire(attempt)))


def encode_begun(ref: LeaseRef, home: str) -> EncodedOutcome:
    """Encode that a job begins after another process that had its message died. It is sent like an outcome."""
    return EncodedOutcome(home, message_id(home, ref), encode(BEGUN))


def join_outcomes(outcomes: Iterable[EncodedOutcome]) -> bytes:
    """Return the body of a message with these outcomes: a JSON list of pairs of id and attempt."""
    parts = (b"".join((b"[", _encoder.encode(outcome.id).encode(), b",", outcome.body, b"]")) for outcome in outcomes)
    return b"".join((b"[", b",".join(parts), b"]"))


def split_outcomes(payload: object) -> list[tuple[LeaseRef | None, object]]:
    """Return a message's outcomes: for each, its `LeaseRef` if known, and its attempt. Raises `UnknownFormat`."""
    if not isinstance(payload, list) or not all(isinstance(part, list) and len(part) == 2 for part in payload):
        raise UnknownFormat("The message was not made by django_skipqueue.")
    if not payload:
        raise UnknownFormat("The message contains no outcome.")
    return [(lease_ref_of(id), attempt) for id, attempt in payload]


def attempt_from_wire(payload: object, *, now: float) -> Attempt:
    """Return the attempt as if it had ended now by this process's monotonic clock. Raises `UnknownFormat`."""
    _format, alias, job, fields, worker, duration, is_written = _checked_fields(payload, 7)
    if not (
        _OUTCOME.fits(fields)
        and _ATTEMPT_REST.fits([alias, worker, duration, is_written])
        and fields[_OUTCOME_FIELDS.index("status")] in _STATUSES
        and _is_error(fields[_OUTCOME_FIELDS.index("error")])
    ):
        raise UnknownFormat("The outcome cannot be read, because a field has a wrong type or is out of range.")
    outcome = Outcome(**dict(zip(_OUTCOME_FIELDS, fields, strict=True)))
    return Attempt(_job_of_fields(job), outcome, now - duration, now, worker, is_written, alias)


def encode(payload: list[Any] | dict[str, Any] | str) -> bytes:
    return _encoder.encode(payload).encode()


def decode(body: bytes | memoryview | str) -> Any:
    """Decode the body of a message. Raises `UnknownFormat` if it is not JSON."""
    try:
        return json.loads(bytes(body) if isinstance(body, memoryview) else body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise UnknownFormat(f"The message is not JSON: {error}") from None


_encoder = json.JSONEncoder(separators=(",", ":"))


def _refuse(constant: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python accepts although they are not JSON."""
    raise ValueError(f"it has {constant}")


def _job_of_fields(fields: object) -> ClaimedJob:
    if not _JOB.fits(fields):
        raise UnknownFormat("The job cannot be read, because a field has a wrong type or is out of range.")
    return ClaimedJob(*fields)


def _is_error(error: dict[str, Any] | None) -> bool:
    """Return whether this is `None`, or an error as `error_entry` makes it."""
    return error is None or (
        _ERROR_NEEDS <= error.keys() <= _ERROR_KINDS.keys()
        and _Form(*[_ERROR_KINDS[name] for name in error]).fits(list(error.values()))
    )


def _checked_fields(payload: object, count: int) -> list[Any]:
    if not isinstance(payload, list) or not payload or not _FORMAT.fits(payload[:1]):
        raise UnknownFormat("The message was not made by django_skipqueue.")
    if payload[0] != WIRE_FORMAT:
        older_side = "the sender" if payload[0] < WIRE_FORMAT else "this side"
        raise UnknownFormat(
            f"The message has format {payload[0]}, but this side reads format {WIRE_FORMAT}. Relays and Celery workers "
            f"need the same version of django_skipqueue. Update {older_side}."
        )
    if len(payload) != count:
        raise UnknownFormat(f"The message has {len(payload)} fields instead of {count}.")
    return payload


BROKER_REASONS = ("expired", "delivery_limit", "maxlen")
"""The reasons why the broker itself gives a job back. With any other reason, a worker has rejected the job."""

LONGEST_ID_SHOWN = 100
"""In a log line, a message's id is cut to this number of characters."""


def add_outcomes(taken: Taken, delivery: int, body: bytes | memoryview | str, id: object, *, now: float) -> int:
    """Add a message's outcomes to `taken`, and return their number. `id`: the message's `correlation_id`."""
    try:
        parts = split_outcomes(decode(body))
    except Exception as error:
        taken.jobs.append(ReturnedJob(delivery, lease_ref_of(id), "unreadable", None, _read_problem(id, error)))
        return 1
    for ref, payload in parts:
        if payload == BEGUN and ref is not None:
            taken.begun.append(BegunJob(delivery, ref))
            continue
        try:
            attempt = attempt_from_wire(payload, now=now)
        except Exception as error:
            taken.jobs.append(ReturnedJob(delivery, ref, "unreadable", None, _read_problem(id, error)))
        else:
            taken.outcomes.append(ReturnedOutcome(delivery, attempt))
    return len(parts)


def returned_job(delivery: int, body: bytes | memoryview | str, id: object, headers: object) -> ReturnedJob:
    """Return the job in a message that came back, with the reason from the message's headers."""
    try:
        task_arguments = decode(body)[0]  # Celery's messages are lists: [args, kwargs, options]
        job, _home = job_from_wire(task_arguments[0])
        job = without_large_arguments(job)
    except Exception as error:
        ref = lease_ref_of(id)
        return ReturnedJob(
            delivery, ref, _return_reason(headers) if ref else "unreadable", None, _read_problem(id, error)
        )
    return ReturnedJob(delivery, job.ref, _return_reason(headers), job)


def _read_problem(id: object, error: Exception) -> str:
    return f"{str(id)[:LONGEST_ID_SHOWN]}: {error}"


def _return_reason(headers: Any) -> str:
    """Return why the broker has returned the message: see `ReturnedJob.reason`."""
    deaths = headers.get("x-death") if isinstance(headers, dict) else None
    newest_death = deaths[0] if isinstance(deaths, list) and deaths else None
    reason = newest_death.get("reason") if isinstance(newest_death, dict) else None
    return str(reason) if reason in BROKER_REASONS else "rejected"
