"""The options of verbs: each has a form field in the admin, and a flag on the command line."""

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django import forms
from django.utils.functional import lazy
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext_lazy as _

from ...exceptions import InvalidArguments, InvalidOption
from ...values.bounds import NUMBER_RANGES, check_columns, check_run_after
from ..durations import duration, moment

LONGEST_DELAY_MINUTES = 365 * 24 * 60
"""A year in minutes."""


@dataclass(frozen=True, kw_only=True)
class VerbOption:
    name: str
    """The name of the form field."""
    parameter: str = ""
    """The parameter of `Verb.change`, if its name is different."""
    field: Callable[[], forms.Field]
    """Makes the form field. Its value is passed as the parameter; `None` stands for the default."""
    flag: str
    metavar: str
    parse: Callable[[str], Any]
    """Parses the flag's text into the parameter's value. Raises `ArgumentTypeError`."""
    help: str
    """The help text of the flag."""


class _MinutesField(forms.IntegerField):
    def clean(self, value: Any) -> timedelta | None:
        minutes = super().clean(value)
        return None if minutes is None else timedelta(minutes=minutes)


def validator_from(check: Callable[[Any], object], message: Any) -> Callable[[Any], None]:
    """Make a form validator from a check that raises `InvalidOption` or `InvalidArguments`."""

    def validate(value: Any) -> None:
        try:
            check(value)
        except (InvalidArguments, InvalidOption):
            raise forms.ValidationError(message) from None

    return validate


def _column_parser(name: str) -> Callable[[str], Any]:
    """Return a function that parses a text into a value for this column of a job."""

    def parse(text: str) -> Any:
        value = int(text) if name in NUMBER_RANGES and re.fullmatch(r"-?\d{1,18}", text, re.ASCII) else text
        try:
            check_columns({name: value})
        except InvalidOption as error:
            raise ArgumentTypeError(str(error)) from None
        return value

    return parse


NUMBER_ATTRIBUTES = {"class": "vIntegerField"}
"""The HTML attributes of a number field in Django's admin."""

IN_THIS_ZONE = _("In the time zone %(zone)s. A time in the past means now.")

OVER = VerbOption(
    name="over",
    field=lambda: _MinutesField(
        label=_("Spread over minutes"),
        help_text=_(
            "With 0, all jobs are due immediately. Otherwise, each job is due at a random time within this number of "
            "minutes."
        ),
        initial=0,
        min_value=0,
        max_value=LONGEST_DELAY_MINUTES,
        required=False,
        widget=forms.NumberInput(NUMBER_ATTRIBUTES),
    ),
    flag="--over",
    metavar="DURATION",
    parse=duration,
    help="make each job due at a random time within this duration; default: all immediately",
)

DELAY = VerbOption(
    name="delay",
    parameter="run_after",
    field=lambda: _MinutesField(
        label=_("Minutes from now"),
        initial=60,
        min_value=1,
        max_value=LONGEST_DELAY_MINUTES,
        widget=forms.NumberInput(NUMBER_ATTRIBUTES),
    ),
    flag="--for",
    metavar="DURATION",
    parse=duration,
    help="how long from now; a job that is due later anyway is not changed",
)

RUN_AFTER = VerbOption(
    name="run_after",
    field=lambda: forms.DateTimeField(
        label=_("Due at"),
        validators=[validator_from(check_run_after, _("A job cannot be due at this time."))],
        help_text=lazy(lambda: IN_THIS_ZONE % {"zone": get_current_timezone_name()}, str)(),
        widget=forms.DateTimeInput(
            {"type": "datetime-local", "step": "1", "class": "vTextField"}, format="%Y-%m-%dT%H:%M:%S"
        ),
    ),
    flag="--to",
    metavar="TIME",
    parse=moment,
    help='the new due time: 90s, 15m, 1h, 2d from now, 2026-11-25, "2026-11-25 14:00"; the past means now',
)

QUEUE_NAME = VerbOption(
    name="queue_name",
    field=lambda: forms.CharField(
        label=_("Queue"),
        validators=[
            validator_from(lambda name: check_columns({"queue_name": name}), _("No queue can have this name."))
        ],
        widget=forms.TextInput({"class": "vTextField"}),
    ),
    flag="--to",
    metavar="QUEUE",
    parse=_column_parser("queue_name"),
    help="the new queue",
)

PRIORITY = VerbOption(
    name="priority",
    field=lambda: forms.IntegerField(
        label=_("Priority"),
        help_text=_("From -100 to 100. Jobs with a higher priority are claimed first."),
        initial=0,
        min_value=int(NUMBER_RANGES["priority"].least),
        max_value=int(NUMBER_RANGES["priority"].most),
        widget=forms.NumberInput(NUMBER_ATTRIBUTES),
    ),
    flag="--to",
    metavar="NUMBER",
    parse=_column_parser("priority"),
    help="the new priority: -100 to 100, higher first",
)
