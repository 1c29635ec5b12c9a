"""A form with the task's parameters, to run a job again with other arguments.

The arguments are checked with the same code as in `.defer()`. Secrets are never sent to the browser. If the user leaves
a masked value unchanged, the new job gets the original value.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, formatannotation
from typing import Any

from django import forms
from django.db import OperationalError
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ....conf import using_database
from ....exceptions import InvalidArguments, InvalidOption
from ....jobs.placement import database_of_key
from ....jobs.task import Task
from ....models import Job
from ....models.copies import call_of, spec_of
from ....values.codec import encode, shorten
from ....values.redaction import UnknownMask, restored
from ...arguments import may_be_searched
from ...parts import unreachable
from ...verbs.verb import Button
from .one_job import CONFIRMED, MESSAGE_NAME_LIMIT

MISSING_ARGUMENT: Any = Parameter.empty

EDIT = Button(
    label=_("Run again with other arguments"),
    hint=_(
        "Enqueues a new job of the same task with these arguments, and leaves this job unchanged. "
        "The task may charge, send or write the same things again."
    ),
    question_title=_("Run job %(id)s again with other arguments"),
    done=_("This is job %(copy)s, made from job %(id)s with other arguments."),
)


@dataclass(frozen=True)
class Argument:
    parameter: Parameter
    value: Any
    """The job's value, or `MISSING_ARGUMENT` if the task uses the parameter's default."""
    shown: Any
    """The value with its secrets masked."""
    is_positional: bool
    """Whether the job passes this argument by position."""
    is_secret: bool
    """Whether values with this name are masked, or the default contains such a name."""

    @property
    def name(self) -> str:
        """The parameter's name, including the stars of `*args` and `**kwargs`."""
        return str(self.parameter.replace(annotation=MISSING_ARGUMENT, default=MISSING_ARGUMENT))

    @property
    def description(self) -> str:
        annotation = self.parameter.annotation
        texts = [] if annotation is MISSING_ARGUMENT else [shorten(formatannotation(annotation), MESSAGE_NAME_LIMIT)]
        if self.parameter.default is not MISSING_ARGUMENT and not self.is_secret:
            default = shorten(repr(self.parameter.default), MESSAGE_NAME_LIMIT)
            texts.append(gettext("left empty: %(default)s") % {"default": default})
        return " · ".join(texts)


def arguments_of(job: Job, task: Task[Any, Any]) -> list[Argument]:
    masked_call = task.redacted(job.args, job.kwargs)
    remaining_kwargs, remaining_masked_kwargs = dict(job.kwargs), dict(masked_call.kwargs)
    arguments: list[Argument] = []
    value: Any
    masked_value: Any
    for position, parameter in enumerate(task.signature.parameters.values()):
        if parameter.kind is Parameter.VAR_POSITIONAL:
            value, masked_value, is_positional = job.args[position:], masked_call.args[position:], True
        elif parameter.kind is Parameter.VAR_KEYWORD:
            value, masked_value, is_positional = dict(remaining_kwargs), dict(remaining_masked_kwargs), False
        elif parameter.kind is not Parameter.KEYWORD_ONLY and position < len(job.args):
            value, masked_value, is_positional = job.args[position], masked_call.args[position], True
        else:
            value = remaining_kwargs.pop(parameter.name, MISSING_ARGUMENT)
            masked_value = remaining_masked_kwargs.pop(parameter.name, MISSING_ARGUMENT)
            is_positional = parameter.kind is Parameter.POSITIONAL_ONLY
        default = parameter.default if isinstance(parameter.default, dict | list) else ""
        is_secret = not may_be_searched(parameter.name, default, task)
        arguments.append(Argument(parameter, value, masked_value, is_positional, is_secret))
    return arguments


class ArgumentField(forms.CharField):
    """A field for one argument as JSON. An empty field uses the parameter's default."""

    def __init__(self, argument: Argument, check: Callable[[str, Any], object], masked: Callable[[str], str]) -> None:
        """`check` raises `InvalidArguments` for a value that the parameter does not accept. `masked` hides secrets."""
        text = "" if argument.shown is MISSING_ARGUMENT else json.dumps(argument.shown, indent=2, ensure_ascii=False)
        rows = min(max(text.count("\n") + 1, 2), 20)
        may_be_empty = argument.parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        super().__init__(
            label=argument.name,
            help_text=argument.description,
            initial=text,
            required=argument.parameter.default is MISSING_ARGUMENT and not may_be_empty,
            widget=forms.Textarea({"rows": rows, "class": "vLargeTextField", "spellcheck": "false"}),
        )
        self.argument = argument
        self._check = check
        self._masked = masked

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text.strip():
            return MISSING_ARGUMENT
        try:
            typed_value = json.loads(text)
            restored_value = restored(typed_value, self.argument.shown, self.argument.value)
            encode(self.argument.parameter.name, restored_value)
            self._check(self.argument.parameter.name, restored_value)
        except UnknownMask:
            raise forms.ValidationError(_("This mask does not match a value of the job. Type the value.")) from None
        except InvalidArguments as error:
            raise forms.ValidationError(self._masked(str(error))) from None  # the error may quote the value
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(
                gettext("This is not JSON: %(error)s. Put text in double quotes.") % {"error": self._masked(str(error))}
            ) from None
        return restored_value


class EditForm(forms.Form):
    def __init__(self, job: Job, task: Task[Any, Any], posted: Any = None) -> None:
        super().__init__(posted if posted and CONFIRMED in posted else None)
        self.job, self.task = job, task
        self.arguments = arguments_of(job, task)
        self._masked = task.redacted(job.args, job.kwargs).text
        for position, argument in enumerate(self.arguments):
            self.fields[f"argument_{position}"] = ArgumentField(argument, task.encoded_argument, self._masked)

    @cached_property
    def call(self) -> tuple[list[Any], dict[str, Any]]:
        """The positional and the keyword arguments that the user has typed."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        values = [self.cleaned_data[name] for name in self.fields]
        must_be_positional = any(  # with `*args`, all parameters before it must be positional
            argument.parameter.kind is Parameter.VAR_POSITIONAL and value not in (MISSING_ARGUMENT, [])
            for argument, value in zip(self.arguments, values, strict=True)
        )
        is_positional = True
        for argument, value in zip(self.arguments, values, strict=True):
            kind = argument.parameter.kind
            can_be_positional = kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
            is_positional = (
                is_positional
                and can_be_positional
                and (argument.is_positional or must_be_positional)
                and value is not MISSING_ARGUMENT
            )
            if value is MISSING_ARGUMENT:
                continue
            if kind is Parameter.VAR_POSITIONAL:
                args += _require_type(value, list, argument)
            elif kind is Parameter.VAR_KEYWORD:
                kwargs |= _require_type(value, dict, argument)
            elif is_positional:
                args.append(value)
            else:
                kwargs[argument.parameter.name] = value
        return args, kwargs

    def clean(self) -> dict[str, Any]:
        """Check the call as a whole: its signature, its size, its unique key, and its database."""
        if not self.errors:
            try:
                encoded = self.task.encoded(*self.call)
                key = encoded.unique_key if self.task.options.makes_key else call_of(self.job, "", "").unique_key
                self.encoded = encoded.with_unique_key(key)
                self.database = database_of_key(spec_of(self.job), self.encoded, self.task)
            except Exception as error:  # the project's own function for the unique key may raise any error
                raise forms.ValidationError(self._masked(str(error)) or type(error).__name__) from None
            if reason := unreachable(self.database):
                raise forms.ValidationError(reason)
        return self.cleaned_data

    def enqueue(self) -> Job | None:
        """Enqueue the new job.

        If another job already has the unique key, return that job, with `created` set to False. Return `None` if the
        database is no longer reachable. The form then has an error that says so.
        """
        try:
            with using_database(self.database):
                return Job.objects.insert(spec_of(self.job), self.encoded)
        except OperationalError:
            reason = unreachable(self.database)
            if not reason:
                raise
        self.add_error(None, reason)
        return None


def _require_type(value: Any, kind: type[Any], argument: Argument) -> Any:
    if not isinstance(value, kind):
        text = gettext("%(name)s must be a list.") if kind is list else gettext("%(name)s must be an object.")
        raise InvalidOption(text % {"name": argument.name})
    return value
