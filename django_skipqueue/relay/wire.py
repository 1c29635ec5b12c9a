"""Jobs and attempts as values that JSON can hold, on their way to a carrier and back.

Invariant: each job and each outcome that the database takes arrives as it was sent, except for what is true in one
process only: times of its monotonic clock, and the exception object. Large arguments do not come back with an outcome:
only receivers of signals would read them, and a relay has many outcomes in memory. A relay and a Celery worker of
different versions agree on `FORMAT`, or raise `UnknownFormat`: no field is ever guessed, and none has another type than
its own. A queue of the broker may hold anything: what is not ours must not end a process, which would get it again.
"""

import json
from collections.abc import Iterable, Sequence
from operator import contains
from typing import Any, NamedTuple, TypeGuard, get_args, get_type_hints

from ..values.outcomes import Outcome
from ..values.records import LEFT_OUT, Attempt, ClaimedJob, LeaseRef

FORMAT = 1
"""Changes with each change of what is sent."""

_JOB_FIELDS = tuple(name for name in ClaimedJob._fields if name not in ("is_suspect", "permit_key", "claimed_at"))
_OUTCOME_FIELDS = ("status", "delay", "refund", "result", "last_error", "error", "is_unknown", "notes")

_WHOLE, _NUMBER, _NONE = (int,), (int, float), type(None)
_JOB_TYPES = (
    (_WHOLE, _WHOLE, (str,), (str,), (str,), (str,), _WHOLE, _WHOLE, _WHOLE, _NUMBER, _NUMBER, (str,))
    + ((*_NUMBER, _NONE),) * 2
    + ((bool,), _NUMBER)
)
_OUTCOME_TYPES = ((str,), _NUMBER, _WHOLE, (str, _NONE), (str, _NONE), (dict, _NONE), (bool,), (str, _NONE))

_STATUSES = frozenset(get_args(get_type_hints(Outcome)["status"]))

ARGUMENTS_SENT_BACK = 10_000
"""Characters of a job's arguments that come back with its outcome, at most."""

LARGEST_ID = 2**63 - 1
"""Of a job or a lease: PostgreSQL's bigint."""

LONGEST_DURATION = 1e9
"""Seconds."""

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
    parts = message_id.rsplit("-", 2)
    if len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal():
        ref = int(parts[1]), int(parts[2])
        return ref if max(ref) <= LARGEST_ID else None
    return None


def lean(job: ClaimedJob, most: int = ARGUMENTS_SENT_BACK) -> ClaimedJob:
    """The job, with `LEFT_OUT` in place of arguments that have more characters."""
    return job if len(job.args) + len(job.kwargs) <= most else job._replace(args=LEFT_OUT, kwargs=LEFT_OUT)


def job_to_wire(job: ClaimedJob, home: str) -> list[Any]:
    """The format, the home of the job's outcome, and the fields of the job."""
    return [FORMAT, home, *job[: len(_JOB_FIELDS)]]


def job_from_wire(payload: object) -> tuple[ClaimedJob, str]:
    """The job, and the home of its outcome. Raises `UnknownFormat`."""
    _, home, *fields = _fields(payload, 2 + len(_JOB_FIELDS))
    if not isinstance(home, str):
        raise UnknownFormat("The message names no home of the outcome.")
    return _job(fields), home


def attempt_to_wire(attempt: Attempt) -> list[Any]:
    """The format, the alias, the job, the outcome, the worker, the duration in seconds, and whether it is written."""
    outcome = attempt.outcome
    duration = attempt.ended - attempt.started
    return [
        FORMAT,
        attempt.database,
        list(lean(attempt.job)[: len(_JOB_FIELDS)]),
        [getattr(outcome, name) for name in _OUTCOME_FIELDS],
        attempt.worker,
        duration,
        attempt.is_written,
    ]


def encode_outcome(attempt: Attempt, home: str) -> EncodedOutcome:
    return EncodedOutcome(home, message_id(home, attempt.job.ref), encode(attempt_to_wire(attempt)))


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
    rest = (alias, worker, duration, is_written)
    if not (
        _have_types(fields, _OUTCOME_TYPES)
        and _have_types(rest, ((str,), (str,), _NUMBER, (bool,)))
        and fields[0] in _STATUSES
        and 0 <= duration <= LONGEST_DURATION
    ):
        raise UnknownFormat("The outcome cannot be read: a field has another type or another range.")
    outcome = Outcome(**dict(zip(_OUTCOME_FIELDS, fields, strict=True)))
    return Attempt(_job(job), outcome, now - duration, now, worker, is_written, alias)


def encode(payload: list[Any] | dict[str, Any]) -> bytes:
    return _encoder.encode(payload).encode()


def decode(body: bytes | memoryview | str) -> Any:
    """The payload in the body of a message. Raises `UnknownFormat` if it is not JSON."""
    try:
        return json.loads(bytes(body) if isinstance(body, memoryview) else body)
    except (ValueError, RecursionError) as error:
        raise UnknownFormat(f"The message is not JSON: {error}") from None


_encoder = json.JSONEncoder(separators=(",", ":"))  # ASCII: a text may hold what UTF-8 cannot


def _job(fields: object) -> ClaimedJob:
    if not _have_types(fields, _JOB_TYPES):
        raise UnknownFormat("The job cannot be read: a field has another type.")
    job = ClaimedJob(*fields)
    if not (0 <= job.id <= LARGEST_ID and 0 <= job.lease <= LARGEST_ID):
        raise UnknownFormat("The job cannot be read: its id or its lease is no number of PostgreSQL.")
    return job


def _have_types(fields: object, types: Sequence[tuple[type, ...]]) -> TypeGuard[Sequence[Any]]:
    """Whether these are as many values, each of one of its types. `True` is no number here."""
    return (
        isinstance(fields, list | tuple) and len(fields) == len(types) and all(map(contains, types, map(type, fields)))
    )


def _fields(payload: object, count: int) -> list[Any]:
    if not isinstance(payload, list) or not payload or not isinstance(payload[0], int):
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
