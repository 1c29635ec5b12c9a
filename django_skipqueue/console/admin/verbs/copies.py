"""Copying finished jobs, and running one again with other arguments.

A copy has the task, arguments, queue, priority, attempts, timeout, retention, unique key and limit of its original.
Invariant: a job that acts for a user is not copied, because the copy would act for that user as well.

Other arguments come from a form of the task's parameters. Invariant: they are checked by the code of `.defer()`. A
secret is never sent to the browser: a mask that is left as it is stands for the job's own value.
"""

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, formatannotation
from typing import Any

from django import forms
from django.db import OperationalError
from django.db.models import TextField
from django.db.models.functions import Cast
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ....conf import using_database
from ....exceptions import InvalidArguments, InvalidOption
from ....jobs.placement import database_of_key
from ....jobs.task import Task
from ....models import FINISHED, Job
from ....queue.fragments import KEPT, OF_CALL, OF_SPEC
from ....queue.silence import can_be_reached
from ....values.bounds import check_columns
from ....values.codec import UNREADABLE, encode, shorten
from ....values.records import EncodedCall, JobSpec
from ....values.redaction import UnknownMask, restored
from ...arguments import may_be_searched
from ...parts import consoles
from .verb import CONFIRMED, Button, Changed

BULK_TASK = "django_skipqueue.apply_to_all"
"""Its jobs change other jobs, with the permissions of the user who asked for that."""

TEXTS = {f"{name}_text": Cast(name, TextField()) for name in ("args", "kwargs")}


def copy_jobs(ids: Collection[int]) -> Changed:
    """Enqueue a copy of each that is finished and whose unique key is free; returns the ids of jobs and copies.

    The JSON texts of the arguments are copied as they are. The unique key is copied too, so that the copy does not run
    beside another job of this key.
    """
    copied = {}
    for job in Job.objects.filter(pk__in=ids, status__in=FINISHED).annotate(**TEXTS):
        copy = None if why_not_copied(job) or why_held_elsewhere(job) else insert_copy(job)
        if copy is not None and copy.created:
            copied[job.pk] = copy.pk
    return copied


def why_not_copied(job: Any) -> str:
    """The message for a job that must not be copied; empty for all others."""
    if job.task == BULK_TASK:
        return gettext("Job %(id)s acts for the user who asked for it, so it cannot be run again.") % {"id": job.pk}
    if UNREADABLE in (job.args, job.kwargs, job.metadata, job.retention):
        return gettext("Job %(id)s has JSON that cannot be read, so it cannot be run again.") % {"id": job.pk}
    try:
        check_columns(spec_of(job)._asdict())
    except InvalidOption as error:  # somebody has written the row by hand
        return gettext("Job %(id)s cannot be run again: %(error)s") % {"id": job.pk, "error": error}
    return ""


def why_held_elsewhere(job: Any) -> str:
    """The message for a job whose unique key is held by one in another database, or cannot be asked for there."""
    spec, call = spec_of(job), call_of(job, json.dumps(job.args), json.dumps(job.kwargs))
    reasons = (each.why_held_elsewhere(job, spec, call) for each in consoles() if each.why_held_elsewhere)
    return next(filter(None, reasons), "")


def unreachable(alias: str) -> str:
    """The message for a database of a key that cannot be used now; empty if it can."""
    if can_be_reached(alias):
        return ""
    return gettext("The database %(alias)s cannot be reached") % {"alias": alias} + "."


def insert_copy(job: Any) -> Job:
    """Enqueue a copy of a job that has the annotations `TEXTS`.

    Returns the copy, or the job that holds its unique key: not `created`.
    """
    return Job.objects.insert(spec_of(job), call_of(job, job.args_text, job.kwargs_text))


def call_of(job: Any, args: str, kwargs: str) -> EncodedCall:
    return EncodedCall(args, kwargs, _given(job, OF_CALL))


def _given(job: Any, names: Iterable[str]) -> dict[str, Any]:
    """The columns of parts that have a value: a copy of a plain job is a plain job."""
    return {name: value for name in names if (value := getattr(job, name)) is not None}


def spec_of(job: Any) -> JobSpec:
    """Everything that is set at an insert, except for the due time and the batch.

    A batch ends when its jobs are finished, and has called back then: a copy made later is none of them.
    """
    columns: dict[str, Any] = {
        name: getattr(job, name) for name in JobSpec._fields if name != "run_after" and hasattr(job, name)
    }
    columns["columns"] = _given(job, OF_SPEC.keys() & {*KEPT})
    columns["retention"] = job.retention and json.dumps(job.retention)
    columns["metadata"] = json.dumps(job.metadata)
    return JobSpec(**columns)


TEXT_LIMIT = 200

MISSING: Any = Parameter.empty

EDIT = Button(
    label=_("Run again with other arguments"),
    hint=_(
        "A new job of the same task is enqueued with these arguments, and this one stays as it is. "
        "What the task charged, sent or wrote, it may do again."
    ),
    question_title=_("Run job %(id)s again with other arguments"),
    done=_("This is job %(copy)s, made from job %(id)s with other arguments."),
)
LOG_ENTRY = _("Run again with other arguments as job %(copy)s.")
LOG_ENTRY_OF_COPY = _("Made from job %(id)s with other arguments.")


@dataclass(frozen=True)
class Argument:
    parameter: Parameter
    value: Any
    """`MISSING` if the job has none, so that the parameter's default is used."""
    shown: Any
    """The same with its secrets masked."""
    is_positional: bool
    """Whether the job passes it by its position."""
    is_secret: bool
    """Whether its name is one whose values are masked, or its default has such a name in it."""

    @property
    def name(self) -> str:
        """The name, with the stars of `*args` and `**kwargs`."""
        return str(self.parameter.replace(annotation=MISSING, default=MISSING))

    @property
    def description(self) -> str:
        annotation = self.parameter.annotation
        texts = [] if annotation is MISSING else [shorten(formatannotation(annotation), TEXT_LIMIT)]
        if self.parameter.default is not MISSING and not self.is_secret:
            default = shorten(repr(self.parameter.default), TEXT_LIMIT)
            texts.append(gettext("left empty: %(default)s") % {"default": default})
        return " · ".join(texts)


def arguments_of(job: Job, task: Task[Any, Any]) -> list[Argument]:
    call = task.redacted(job.args, job.kwargs)
    left, left_shown = dict(job.kwargs), dict(call.kwargs)
    found: list[Argument] = []
    value: Any
    shown: Any
    for position, parameter in enumerate(task.signature.parameters.values()):
        if parameter.kind is Parameter.VAR_POSITIONAL:
            value, shown, is_positional = job.args[position:], call.args[position:], True
        elif parameter.kind is Parameter.VAR_KEYWORD:
            value, shown, is_positional = dict(left), dict(left_shown), False
        elif parameter.kind is not Parameter.KEYWORD_ONLY and position < len(job.args):
            value, shown, is_positional = job.args[position], call.args[position], True
        else:
            value, shown = left.pop(parameter.name, MISSING), left_shown.pop(parameter.name, MISSING)
            is_positional = parameter.kind is Parameter.POSITIONAL_ONLY
        default = parameter.default if isinstance(parameter.default, dict | list) else ""
        is_secret = not may_be_searched(parameter.name, default, task)
        found.append(Argument(parameter, value, shown, is_positional, is_secret))
    return found


class ArgumentField(forms.CharField):
    """The JSON of one argument; empty where the parameter's default is to be used."""

    def __init__(self, argument: Argument, check: Callable[[str, Any], object], masked: Callable[[str], str]) -> None:
        """`check` raises `InvalidArguments` for a value that the parameter does not take; `masked` hides secrets."""
        text = "" if argument.shown is MISSING else json.dumps(argument.shown, indent=2, ensure_ascii=False)
        rows = min(max(text.count("\n") + 1, 2), 20)
        may_be_empty = argument.parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        super().__init__(
            label=argument.name,
            help_text=argument.description,
            initial=text,
            required=argument.parameter.default is MISSING and not may_be_empty,
            widget=forms.Textarea({"rows": rows, "class": "vLargeTextField", "spellcheck": "false"}),
        )
        self.argument = argument
        self._check = check
        self._masked = masked

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text.strip():
            return MISSING
        try:
            given = json.loads(text)
            restored_value = restored(given, self.argument.shown, self.argument.value)
            encode(self.argument.parameter.name, restored_value)
            self._check(self.argument.parameter.name, restored_value)
        except UnknownMask:
            raise forms.ValidationError(_("This mask stands for no value of the job. Type the value.")) from None
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
        for place, argument in enumerate(self.arguments):
            self.fields[f"argument_{place}"] = ArgumentField(argument, task.encoded_argument, self._masked)

    @cached_property
    def call(self) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        values = [self.cleaned_data[name] for name in self.fields]
        by_position = any(  # before `*args` all others are positional, too
            argument.parameter.kind is Parameter.VAR_POSITIONAL and value not in (MISSING, [])
            for argument, value in zip(self.arguments, values, strict=True)
        )
        is_positional = True
        for argument, value in zip(self.arguments, values, strict=True):
            kind = argument.parameter.kind
            can_be = kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
            is_positional = (
                is_positional and can_be and (argument.is_positional or by_position) and value is not MISSING
            )
            if value is MISSING:
                continue
            if kind is Parameter.VAR_POSITIONAL:
                args += _checked(value, list, argument)
            elif kind is Parameter.VAR_KEYWORD:
                kwargs |= _checked(value, dict, argument)
            elif is_positional:
                args.append(value)
            else:
                kwargs[argument.parameter.name] = value
        return args, kwargs

    def clean(self) -> dict[str, Any]:
        """Check the call as a whole: its form, its size, the task's own function for a unique key, and its database."""
        if not self.errors:
            try:
                encoded = self.task.encoded(*self.call)
                key = encoded.unique_key if self.task.options.makes_key else call_of(self.job, "", "").unique_key
                self.encoded = encoded.with_unique_key(key)
                self.database = database_of_key(spec_of(self.job), self.encoded, self.task)
            except Exception as error:  # also one that the project's function for the unique key raises
                raise forms.ValidationError(self._masked(str(error)) or type(error).__name__) from None
            if reason := unreachable(self.database):
                raise forms.ValidationError(reason)
        return self.cleaned_data

    def enqueue(self) -> Job | None:
        """Enqueue the new job; `created` is False on a job that holds the unique key already.

        `None`: its database has gone away meanwhile, and the form has an error that says so.
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


def _checked(value: Any, kind: type[Any], argument: Argument) -> Any:
    if not isinstance(value, kind):
        text = gettext("%(name)s must be a list.") if kind is list else gettext("%(name)s must be an object.")
        raise InvalidOption(text % {"name": argument.name})
    return value
