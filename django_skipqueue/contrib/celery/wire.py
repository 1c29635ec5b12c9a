"""Jobs and attempts as values that JSON can hold, on their way to a carrier and back, and the messages that have them.

Invariant: each job and each outcome that the database takes arrives as it was sent, except for what is true in one
process only: times of its monotonic clock, and the exception object. Large arguments do not come back with an outcome:
only receivers of signals would read them, and a relay has many outcomes in memory. A relay and a Celery worker of
different versions agree on `FORMAT`, or raise `UnknownFormat`: no field is ever guessed, and none has another type, or
another range, than its own. A queue of the broker may hold anything: what was not made here must not end a process,
which would get it again. So whatever goes wrong while a message is read raises `UnknownFormat`.

Invariant: a relay reads outcomes, and jobs that come back, without an exception, whatever a message holds. Who can
write to the broker can send anything, and a message that ended its relay would come again. A message that cannot be
read is told as such, by its id.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from operator import contains
from typing import Any, NamedTuple, NoReturn, TypeGuard, get_args, get_type_hints

from ...values.bounds import MAX_KEY_BYTES
from ...values.outcomes import ERROR_NAME_LIMIT, LONGEST_DELAY, Outcome
from ...values.records import LEFT_OUT, Attempt, ClaimedJob, LeaseRef
from .carrier import BegunJob, ReturnedJob, ReturnedOutcome, Taken

FORMAT = 1
"""Changes with each change of what is sent."""

_JOB_FIELDS = tuple(name for name in ClaimedJob._fields if name not in ("is_suspect", "permit_key", "claimed_at"))
_OUTCOME_FIELDS = ("status", "delay", "refund", "result", "last_error", "error", "is_unknown", "notes")


class _Kind(NamedTuple):
    """What a field may be. A number that is NaN, infinite or too long for a float is in no range."""

    types: tuple[type, ...]
    least: float = 0
    most: float = 0
    """The largest number, or the longest text in bytes; 0: any."""


LARGEST_ID = 2**63 - 1
"""Of a job or a lease: PostgreSQL's bigint."""

LONGEST_DURATION = 1e9
"""Seconds."""

END_OF_TIME = 253_402_300_800
"""The end of the year 9999, in seconds since the epoch. PostgreSQL has no job that is later, or as early."""

_INT, _REAL = (int,), (int, float)
_ID, _COUNT, _FLAG = _Kind(_INT, 0, LARGEST_ID), _Kind(_INT, -(2**15), 2**31 - 1), _Kind((bool,))
_TIME, _NUMBER = _Kind(_REAL, -END_OF_TIME, END_OF_TIME), _Kind(_REAL, -1e15, 1e15)
_TEXT, _NAME, _ERROR_NAME = (_Kind((str,), most=most) for most in (0, MAX_KEY_BYTES, 4 * ERROR_NAME_LIMIT))


def _or_none(kind: _Kind) -> _Kind:
    return kind._replace(types=(*kind.types, type(None)))


class _Form:
    """What the fields of a list may be."""

    def __init__(self, *kinds: _Kind) -> None:
        self._types = [kind.types for kind in kinds]
        self._ranges = [(place, *kind[1:]) for place, kind in enumerate(kinds) if str not in kind.types and kind.most]
        self._names = [(place, kind.most) for place, kind in enumerate(kinds) if str in kind.types and kind.most]

    def fits(self, values: object) -> TypeGuard[Sequence[Any]]:
        """Whether these are as many values, each of one of its types, and within its range. `True` is no number here.

        PostgreSQL can store each of the texts.
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
        return "\0" not in text and (
            size <= 4 * ERROR_NAME_LIMIT or all(len(values[place].encode()) <= most for place, most in self._names)
        )


_JOB = _Form(
    *(_ID, _ID, _NAME, _NAME, _TEXT, _TEXT, _COUNT, _COUNT, _Kind(_INT, -100, 100), _TIME, _TIME, _TEXT),
    *(_or_none(_Kind(_REAL, 0, sys.float_info.max)), _or_none(_TIME), _FLAG, _NUMBER),
)
_OUTCOME = _Form(
    *(_TEXT, _Kind(_REAL, 0, LONGEST_DELAY.total_seconds()), _Kind(_INT, 0, 1), _or_none(_TEXT), _or_none(_TEXT)),
    *(_or_none(_Kind((dict,))), _FLAG, _or_none(_TEXT)),
)
_HOME, _FORMAT = _Form(_NAME), _Form(_COUNT)
_REST = _Form(_NAME, _NAME, _Kind(_REAL, 0, LONGEST_DURATION), _FLAG)

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
"""What `error_entry` makes. Roll-ups have the names in their primary key."""

_ERROR_NEEDS = frozenset({"exception", "message", "traceback"})

_STATUSES = frozenset(get_args(get_type_hints(Outcome)["status"]))

ARGUMENTS_SENT_BACK = 10_000
"""Characters of a job's arguments that come back with its outcome, at most."""

BEGUN = "begun"
"""In the place of an attempt: see `encode_begun`."""

_ID_PREFIX = "skipqueue-"


class EncodedOutcome(NamedTuple):
    home: str
    id: str
    """See `message_id`."""
    body: bytes
    """See `attempt_to_wire`."""

    @property
    def size(self) -> int:
        """Bytes of a message that holds no other outcome."""
        return len(self.id) + len(self.body) + len(b'[["",]]')


class UnknownFormat(Exception):
    """The message comes from another version of django_skipqueue, or was not made by it."""


def message_id(home: str, ref: LeaseRef) -> str:
    """The id of a job's message under one lease: Celery's task id."""
    return f"{_ID_PREFIX}{home}-{ref[0]}-{ref[1]}"


def lease_ref_of(message_id: object) -> LeaseRef | None:
    """The lease in the id of a message; `None` if the message is not about a job."""
    if not isinstance(message_id, str) or not message_id.startswith(_ID_PREFIX):
        return None
    _, *numbers = message_id.rsplit("-", 2)
    if len(numbers) < 2 or not all(each.isdecimal() and len(each) <= len(str(LARGEST_ID)) for each in numbers):
        return None
    id, lease = map(int, numbers)
    return (id, lease) if max(id, lease) <= LARGEST_ID else None


def lean(job: ClaimedJob, most: int = ARGUMENTS_SENT_BACK) -> ClaimedJob:
    """The job, with `LEFT_OUT` in place of arguments that have more characters."""
    return job if len(job.args) + len(job.kwargs) <= most else job._replace(args=LEFT_OUT, kwargs=LEFT_OUT)


def job_to_wire(job: ClaimedJob, home: str) -> list[Any]:
    """The format, the home of the job's outcome, and the fields of the job."""
    return [FORMAT, home, *job[: len(_JOB_FIELDS)]]


def job_from_wire(payload: object) -> tuple[ClaimedJob, str]:
    """The job, and the home of its outcome. Raises `UnknownFormat`."""
    _, home, *fields = _fields(payload, 2 + len(_JOB_FIELDS))
    if not _HOME.fits([home]):
        raise UnknownFormat("The message names no home of the outcome.")
    return _job(fields), home


def attempt_to_wire(attempt: Attempt) -> list[Any]:
    """The format, the alias, the job, the outcome, the worker, the duration in seconds, and whether it is written."""
    job, outcome = lean(attempt.job)[: len(_JOB_FIELDS)], [getattr(attempt.outcome, name) for name in _OUTCOME_FIELDS]
    duration = attempt.ended - attempt.started
    return [FORMAT, attempt.database, list(job), outcome, attempt.worker, duration, attempt.is_written]


def encode_outcome(attempt: Attempt, home: str) -> EncodedOutcome:
    return EncodedOutcome(home, message_id(home, attempt.job.ref), encode(attempt_to_wire(attempt)))


def encode_begun(ref: LeaseRef, home: str) -> EncodedOutcome:
    """In place of an outcome: this job is about to begin, after another process that had its message is gone."""
    return EncodedOutcome(home, message_id(home, ref), encode(BEGUN))


def join_outcomes(outcomes: Iterable[EncodedOutcome]) -> bytes:
    """The body of a message with these outcomes, which have one home: a list of ids and attempts."""
    parts = (b"".join((b"[", _encoder.encode(each.id).encode(), b",", each.body, b"]")) for each in outcomes)
    return b"".join((b"[", b",".join(parts), b"]"))


def split_outcomes(payload: object) -> list[tuple[LeaseRef | None, object]]:
    """The lease of each outcome of a message, if it can be read, and its attempt. Raises `UnknownFormat`."""
    if not isinstance(payload, list) or not all(isinstance(part, list) and len(part) == 2 for part in payload):
        raise UnknownFormat("The message was not made by django_skipqueue.")
    if not payload:
        raise UnknownFormat("The message holds no outcome.")
    return [(lease_ref_of(id), attempt) for id, attempt in payload]


def attempt_from_wire(payload: object, *, now: float) -> Attempt:
    """The attempt, as if it had ended now, in monotonic seconds of this process. Raises `UnknownFormat`."""
    _, alias, job, fields, worker, duration, is_written = _fields(payload, 7)
    if not (
        _OUTCOME.fits(fields)
        and _REST.fits([alias, worker, duration, is_written])
        and fields[0] in _STATUSES
        and _is_error(fields[_OUTCOME_FIELDS.index("error")])
    ):
        raise UnknownFormat("The outcome cannot be read: a field has another type or another range.")
    outcome = Outcome(**dict(zip(_OUTCOME_FIELDS, fields, strict=True)))
    return Attempt(_job(job), outcome, now - duration, now, worker, is_written, alias)


def encode(payload: list[Any] | dict[str, Any] | str) -> bytes:
    return _encoder.encode(payload).encode()


def decode(body: bytes | memoryview | str) -> Any:
    """The payload in the body of a message. Raises `UnknownFormat` if it is not JSON."""
    try:
        return json.loads(bytes(body) if isinstance(body, memoryview) else body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise UnknownFormat(f"The message is not JSON: {error}") from None


_encoder = json.JSONEncoder(separators=(",", ":"))


def _refuse(constant: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python reads, and which are not JSON."""
    raise ValueError(f"it has {constant}")


def _job(fields: object) -> ClaimedJob:
    if not _JOB.fits(fields):
        raise UnknownFormat("The job cannot be read: a field has another type or another range.")
    return ClaimedJob(*fields)


def _is_error(error: dict[str, Any] | None) -> bool:
    return error is None or (
        _ERROR_NEEDS <= error.keys() <= _ERROR_KINDS.keys()
        and _Form(*[_ERROR_KINDS[name] for name in error]).fits(list(error.values()))
    )


def _fields(payload: object, count: int) -> list[Any]:
    if not isinstance(payload, list) or not payload or not _FORMAT.fits(payload[:1]):
        raise UnknownFormat("The message was not made by django_skipqueue.")
    if payload[0] != FORMAT:
        older = "the sender" if payload[0] < FORMAT else "this side"
        raise UnknownFormat(
            f"The message has format {payload[0]}, and this side reads format {FORMAT}: relays and Celery workers need "
            f"the same version of django_skipqueue. Update {older}."
        )
    if len(payload) != count:
        raise UnknownFormat(f"The message has {len(payload)} fields in place of {count}.")
    return payload


REASONS = ("expired", "delivery_limit", "maxlen")
"""Why the broker itself gives a job back. Otherwise a worker has rejected it."""

ID_SHOWN = 100
"""Characters of a message's id that are shown."""


def outcomes(taken: Taken, delivery: int, body: bytes | memoryview | str, id: object, *, now: float) -> int:
    """Add the outcomes in a message to `taken`, and return their number. `id` is the message's `correlation_id`."""
    try:
        parts = split_outcomes(decode(body))
    except Exception as error:
        taken.jobs.append(ReturnedJob(delivery, lease_ref_of(id), "unreadable", None, _problem(id, error)))
        return 1
    for ref, payload in parts:
        if payload == BEGUN and ref is not None:
            taken.begun.append(BegunJob(delivery, ref))
            continue
        try:
            attempt = attempt_from_wire(payload, now=now)
        except Exception as error:
            taken.jobs.append(ReturnedJob(delivery, ref, "unreadable", None, _problem(id, error)))
        else:
            taken.outcomes.append(ReturnedOutcome(delivery, attempt))
    return len(parts)


def returned(delivery: int, body: bytes | memoryview | str, id: object, headers: object) -> ReturnedJob:
    """The job in a message that has come back, with the reason that is in the headers of the message."""
    try:
        job = lean(job_from_wire(decode(body)[0][0])[0])
    except Exception as error:
        ref = lease_ref_of(id)
        return ReturnedJob(delivery, ref, _reason(headers) if ref else "unreadable", None, _problem(id, error))
    return ReturnedJob(delivery, job.ref, _reason(headers), job)


def _problem(id: object, error: Exception) -> str:
    return f"{str(id)[:ID_SHOWN]}: {error}"


def _reason(headers: Any) -> str:
    deaths = headers.get("x-death") if isinstance(headers, dict) else None
    last = deaths[0] if isinstance(deaths, list) and deaths else None
    reason = last.get("reason") if isinstance(last, dict) else None
    return str(reason) if reason in REASONS else "rejected"
