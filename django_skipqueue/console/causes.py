"""Causes of failures as operators read and write them: `psp.errors.Unavailable in payments.gateway.capture`."""

from django.db.models import F, Func, Q, TextField, Value
from django.db.models.lookups import EndsWith, Exact
from django.utils.http import urlencode

from ..values.records import Cause

IN = " in "
"""Stands between the class and the place. Neither name has a space in it."""


def text_of(cause: Cause) -> str:
    return f"{cause.exception}{IN}{cause.place}" if cause.place else cause.exception


def query_of(cause: Cause) -> str:
    """The query of an address that names the task and the cause."""
    return urlencode({"task": cause.task, "cause": text_of(cause)})


def of_task(task: str, text: str) -> Cause:
    exception, _, place = text.partition(IN)
    return Cause(task, exception, place)


def raised(text: str) -> Q:
    """The condition that a job's last error is of this class, and of this place if the text has one.

    The class may be given without its module. No index is used.
    """
    exception, _, place = text.partition(IN)
    raised_class, raised_in = _of_last_error("exception"), _of_last_error("place")
    condition = Q(Exact(raised_class, exception)) | Q(EndsWith(raised_class, f".{exception}"))
    return condition & Q(Exact(raised_in, place)) if place else condition


def _of_last_error(key: str) -> Func:
    return Func(
        F("errors"), Value(key), template="(%(expressions)s)", arg_joiner=" -> -1 ->> ", output_field=TextField()
    )
