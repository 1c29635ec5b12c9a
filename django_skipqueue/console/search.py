"""Search jobs by the text of the search box, by criteria, by the cause of a failure, or by id.

The text of the search box is an id (`#42`, or `42`), an argument (`payment_id=42`, `order.id: 42`), or a part of the
task, the queue, the error, the arguments or the result. A job must match all words. The search never finds a masked
value, because otherwise users could guess it by trying.

If no index finds the jobs, a page searches only a window, which is a part of the list: at most `WINDOW_SIZE` jobs. The
page says which jobs these are. Each window is the next part of an index, so nothing is sorted.

A cause is written as `psp.errors.Unavailable in payments.gateway.capture`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

from django.db.models import BooleanField, F, Func, IntegerField, JSONField, Q, QuerySet, TextField, Value
from django.db.models.lookups import EndsWith, Exact, LessThan
from django.utils.http import urlencode
from django.utils.text import unescape_string_literal

from ..conf import settings
from ..exceptions import InvalidArguments
from ..jobs.registry import registry
from ..models import Job, Status
from ..queue.store import Store
from ..values.codec import clean, encode
from ..values.records import LARGEST_ID, Cause
from ..values.redaction import SECRETS, words
from . import counts
from .arguments import has_secrets, may_be_searched, positional_names
from .counts import Count, expected, grouped
from .job_states import ALWAYS, RETRYING, Indexed, is_in, time_column
from .periods import Period
from .search_indexes import SearchIndex, is_scalar, usable


def is_id(text: str) -> bool:
    return text.isdecimal() and len(text) <= len(str(LARGEST_ID)) and int(text) <= LARGEST_ID


WINDOW_SIZE = 50_000
"""The number of jobs in a window. PostgreSQL searches them in about 20 ms, at worst 60 ms."""

QUEUED_WINDOW_SIZE = 20_000
"""The number of jobs in a window of queued jobs. Because their index contains an expression, PostgreSQL must read each
row to find the window's end."""

MOST_WINDOWS = 20
"""The maximum number of windows of a list. Beyond a million jobs, finding the start of a window takes too long."""


def size_of(indexed: Indexed) -> int:
    """Return the number of jobs in a window of this list."""
    return min(WINDOW_SIZE, QUEUED_WINDOW_SIZE) if indexed.status == Status.QUEUED else WINDOW_SIZE


@dataclass(frozen=True)
class SearchWindow:
    indexed: Indexed
    """The list, which is sorted in the order of an index."""
    number: int
    """The number of the window; 1 is the beginning of the list."""
    start: tuple[Any, ...] | None
    end: tuple[Any, ...] | None
    """The window begins and ends after the jobs with these keys. `None` means the beginning or the end of the list."""

    @classmethod
    def at(cls, indexed: Indexed, number: int) -> "SearchWindow":
        """Return the window with this number, at most `MOST_WINDOWS`; the first window if the list is too short."""
        size, number = size_of(indexed), min(number, MOST_WINDOWS)
        start = indexed.edge(size * (number - 1)) if number > 1 else None
        number = number if start else 1
        return cls(indexed, number, start, indexed.edge(size * number))

    def next(self) -> "SearchWindow | None":
        """Return the next window, or `None`. It is found by keys, so this is fast anywhere in the list."""
        if self.end is None:
            return None
        return SearchWindow(
            self.indexed, self.number + 1, self.end, self.indexed.edge(size_of(self.indexed), after=self.end)
        )

    def and_all_after(self) -> "Iterator[SearchWindow]":
        window: SearchWindow | None = self
        while window is not None:
            yield window
            window = window.next()

    @property
    def is_whole_list(self) -> bool:
        return self.start is None and self.end is None

    @property
    def has_next(self) -> bool:
        return self.end is not None and self.number < MOST_WINDOWS

    def rest(self) -> Count:
        """Count the jobs of the list after this window; an estimate if there are many."""
        if self.end is None:
            return Count(0)
        counted = self.indexed.count(Q(self.indexed.order.after(self.end)))
        if not counted.is_capped:
            return counted
        return counted.or_about(expected(self.indexed.jobs()) - self.number * size_of(self.indexed))

    @property
    def first(self) -> str:
        """The position of the window's first job in the list, from 1."""
        return grouped((self.number - 1) * size_of(self.indexed) + 1)

    @property
    def last(self) -> str:
        return grouped(self.number * size_of(self.indexed))

    def among(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        if self.start is not None:
            jobs = jobs.filter(self.indexed.order.after(self.start))
        return jobs if self.end is None else jobs.filter(self.indexed.order.up_to(self.end))


IN = " in "
"""The separator between exception class and function, which contain no spaces."""


def cause_text(cause: Cause) -> str:
    return f"{cause.exception}{IN}{cause.place}" if cause.place else cause.exception


def cause_query(cause: Cause) -> str:
    """Return the URL query that names the task and the cause."""
    return urlencode({"task": cause.task, "cause": cause_text(cause)})


def cause_of_text(task: str, text: str) -> Cause:
    exception, _, place = text.partition(IN)
    return Cause(task, exception, place)


def cause_of(job: Job) -> Cause | None:
    """Return the cause of the job's last error, if the row has one."""
    last = job.errors[-1] if job.errors else None
    if not isinstance(last, dict):
        return None
    exception, place = (str(last.get(name) or "") for name in ("exception", "place"))
    return Cause(job.task, exception, place) if exception else None


def has_raised(text: str) -> Q:
    """Return the condition that a job's last error has this class, and was raised in this function if the text has one.

    The text may contain the class without its module. The condition does not use an index.
    """
    exception, _, place = text.partition(IN)
    raised_class, raised_in = _field_of_last_error("exception"), _field_of_last_error("place")
    condition = Q(Exact(raised_class, exception)) | Q(EndsWith(raised_class, f".{exception}"))
    return condition & Q(Exact(raised_in, place)) if place else condition


def _field_of_last_error(key: str) -> Func:
    """Return the SQL expression `(errors -> -1 ->> key)`."""
    return Func(
        F("errors"), Value(key), template="(%(expressions)s)", arg_joiner=" -> -1 ->> ", output_field=TextField()
    )


NO_JOB = Q(pk__in=[])

HAS_FAILED = is_in(Status.FAILED) | is_in(RETRYING)

ESCAPE = r"\\u[0-9a-f]{4}|\\[a-z]"
"""A pattern for characters that JSON writes as an escape with letters."""

INSIDE = r'(?:[^"\\]|\\.)'
"""A pattern for one character inside a JSON string."""

QUOTED = r""" "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' """
SEARCH_TERM = re.compile(
    rf"""
    (?P<path>[^\W\d][\w-]*(?:\.[\w-]+)*) \s* [=:] \s* (?P<value>{QUOTED} | \{{[^{{}}]*\}} | \[[^][]*\] | \S+)
    | {QUOTED} | \S+
    """,
    re.DOTALL | re.VERBOSE,
)

LARGEST_SEARCHED_COLUMN = 8_000
"""If a JSON column takes more bytes than this, only named arguments are searched in it."""

JSON_COLUMNS = ("args", "kwargs", "result")

SEARCHED_COLUMNS = ("task", "queue_name", "last_error", *(f"searched_{name}" for name in JSON_COLUMNS))
"""The columns in which a word is searched."""

PLAIN_TEXT = re.compile(r"[A-Za-z0-9_@.+-]+")
"""A pattern for text that JSON writes unchanged."""


class Bytes(Func):
    """SQL: the number of bytes that a value takes in its row, without reading the value."""

    function = "pg_column_size"
    output_field = IntegerField()


class Text(Func):
    """SQL: a JSON column as text; NULL if it is large."""

    template = (
        f"CASE WHEN pg_column_size(%(expressions)s) >= {LARGEST_SEARCHED_COLUMN} THEN NULL "
        "ELSE coalesce(%(expressions)s::text, '') END"
    )
    output_field = TextField()


@dataclass(frozen=True)
class Search:
    text: str

    @cached_property
    def words(self) -> list[re.Match[str]]:
        """The words of the text. Quotes and `=` keep a word together."""
        return list(SEARCH_TERM.finditer(clean(self.text, 1_000)))

    @property
    def names_an_id(self) -> bool:
        """Whether the text contains an id, so that the primary key finds the only possible job."""
        return any(word[0].startswith("#") and is_id(word[0][1:]) for word in self.words)

    @property
    def lone_number(self) -> int | None:
        """The number if the text is only a number, which may be an id or a value."""
        alone = self.words[0][0] if len(self.words) == 1 else ""
        return int(alone) if is_id(alone) else None

    @property
    def arguments(self) -> list[tuple[str, str]]:
        """The names and values of arguments that a job must have, as the user typed them."""
        return [(word["path"], word["value"]) for word in self.words if word["path"]]

    def among(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        """Filter jobs by the words of the text."""
        jobs = _with_searched_texts(jobs)
        for word in self.words:
            if word["path"]:
                jobs = jobs.filter(may_have(word["value"], *SEARCHED_COLUMNS))
            jobs = jobs.filter(_word_condition(word))
        return jobs


def having_argument(jobs: QuerySet[Job], path: str, value: str) -> QuerySet[Job]:
    """Filter jobs by an argument as the user typed it, such as `order.id` and `42`."""
    jobs = _with_searched_texts(jobs).filter(may_have(value, "searched_args", "searched_kwargs"))
    return jobs.filter(_has_argument(path.split("."), value))


def _with_searched_texts(jobs: QuerySet[Job]) -> QuerySet[Job]:
    return jobs.alias(**{f"searched_{name}": Text(F(name)) for name in JSON_COLUMNS})


def may_have(text: str, *columns: str) -> Q:
    """Return a fast condition that is true for every job with this value in an argument or a text, and for few others.

    For a job without the value, checking this condition takes 1 µs, and checking the whole condition 3 µs.
    """
    values = _possible_values(text)
    spellings = {value if isinstance(value, str) else json.dumps(value) for value in values}
    searched_text = spellings.pop().rpartition(".")[2]  # of an exception's name, only the class is searched
    has_other_spellings = bool(spellings) or isinstance(values[0], float)  # `42.0` and `42` are equal
    if has_other_spellings or not PLAIN_TEXT.fullmatch(searched_text):
        return Q()
    is_large = Q()
    for name in ("args", "kwargs"):
        is_large |= ~Q(LessThan(Bytes(F(name)), LARGEST_SEARCHED_COLUMN))
    joined_columns = Func(Value(" "), *map(F, columns), function="concat_ws", output_field=TextField())  # without NULLs
    pattern = Value("%" + searched_text.replace("_", r"\_") + "%")
    has_value = Func(
        joined_columns, pattern, template="%(expressions)s", arg_joiner=" ILIKE ", output_field=BooleanField()
    )
    return Q(has_value) | is_large


def _word_condition(word: re.Match[str]) -> Q:
    """Return the condition that a job matches this word of the search box."""
    typed = word[0]
    if typed.startswith("#") and is_id(typed[1:]):
        return Q(pk=int(typed[1:]))
    condition = _is_in_shown_text(_unquoted(typed))
    if is_id(typed):
        condition |= Q(pk=int(typed))
    if word["path"]:
        value = _unquoted(word["value"])
        condition |= _last_attempt_raised(word["path"]) & Q(last_error__icontains=value) & _has_no_masks()
        condition |= _has_argument(word["path"].split("."), word["value"])
    return condition


def _is_in_shown_text(text: str) -> Q:
    """Return the condition that a text of the job, except masked texts, contains this text."""
    as_json = json.dumps(text, ensure_ascii=False)[1:-1]
    in_maskable_column = Q(last_error__icontains=text)
    for name in JSON_COLUMNS:
        in_maskable_column |= Q(**{f"searched_{name}__icontains": as_json})
    return (
        Q(task__icontains=text)
        | Q(queue_name__icontains=text)
        | _last_attempt_raised(text)
        | (in_maskable_column & _has_no_masks())
    )


def _last_attempt_raised(name: str) -> Q:
    """Return the condition that the last attempt raised this class, with which `last_error` begins.

    `last_error` may also be the reason of a discard, which may contain a secret.
    """
    class_name = name.rpartition(".")[2]
    if not re.fullmatch("[A-Za-z_]+", class_name):
        return NO_JOB
    return Q(last_error__iregex=rf"^[a-z_]*{class_name}[a-z_]*(:|$)") & (HAS_FAILED | _has_no_masks())


def _has_no_masks() -> Q:
    """Return the condition that nothing in the job is masked, judged by the names in it. In doubt it is false."""
    may_be_masked = Q(task__in=[task.name for task in registry if has_secrets(task)])
    secrets = [secret_words for name in (*SECRETS, *settings.redact) if (secret_words := words(name))]
    first_words = "|".join(sorted({first for first, *_ in secrets}))
    name_of_secret = rf'"{INSIDE}*({"|".join(map(_secret_pattern, secrets))})(?![a-z]){INSIDE}*": '
    for name in JSON_COLUMNS:  # the first condition is fast and rarely true; the second takes 50 µs per row
        may_be_masked |= Q(**{f"searched_{name}__iregex": first_words}) & Q(
            **{f"searched_{name}__regex": name_of_secret}
        )
    return ~may_be_masked


def _secret_pattern(secret: list[str]) -> str:
    """Return a pattern for a secret's name in any spelling, such as `api_key`, `apiKey` and `API-KEY`."""
    (lower, capitalized, upper), *rest = ((word, word.capitalize(), word.upper()) for word in secret)
    first_word = f"(?:(?:(?<![a-z])|(?<={ESCAPE})){lower}|{capitalized}|{upper})"
    return first_word + "".join(f"(?:{ESCAPE}|[^a-zA-Z])*(?:{'|'.join(spellings)})" for spellings in rest)


def _has_argument(path: list[str], text: str) -> Q:
    """Return the condition that an argument, or a value inside it, has this value: by name, or by position."""
    name, *inner_keys = path
    condition, values = NO_JOB, _possible_values(text)
    for value in values:
        inner = reduce(lambda item, key: {key: item}, reversed(inner_keys), value)  # for `order.id = 7`: {"id": 7}
        if not may_be_searched(name, inner):
            continue
        masking_tasks = [task.name for task in registry if not may_be_searched(name, inner, task)]
        has_value = Q(kwargs__contains={name: inner})
        for task in registry:
            parameter_names = positional_names(task)
            if name in parameter_names:
                column = f"args__{parameter_names.index(name)}"
                has_value |= Q(**{f"{column}__contains" if inner_keys else column: inner}, task=task.name)
        condition |= has_value & ~Q(task__in=masking_tasks)
    return condition | (_has_path(path, values) & _has_no_masks())


def _has_path(path: list[str], values: list[Any]) -> Q:
    """Return the condition that an argument has one of these values at this path, at any depth, even in lists."""
    steps = "".join(f".{json.dumps(name)}" for name in path)
    json_path = Func(Value(f"$.**{steps} ? (@ == $values[*])"), template="%(expressions)s::jsonpath")
    scalars = Value({"values": [value for value in values if not isinstance(value, list | dict)]}, JSONField())
    condition = NO_JOB
    for name in ("args", "kwargs"):
        template = "jsonb_path_exists(%(expressions)s, true)"
        has_path = Func(F(name), json_path, scalars, template=template, output_field=BooleanField())
        condition |= Q(LessThan(Bytes(F(name)), LARGEST_SEARCHED_COLUMN)) & Q(has_path)
    return condition


def _possible_values(text: str) -> list[Any]:
    """Return the values that the typed text can mean: `42` the number or the text, `"42"` only the text."""
    try:
        value = json.loads(text)
        encode("The value", value)
    except (ValueError, RecursionError, InvalidArguments):  # not JSON, or JSON that no job could have
        return [_unquoted(text)]
    return [value] if isinstance(value, str) else [value, text]


def _unquoted(word: str) -> str:
    try:
        return unescape_string_literal(word)
    except ValueError:
        return word


@dataclass(frozen=True)
class FoundByIndex:
    """All jobs of some tasks with an argument, as found by the indexes of `SKIPQUEUE["SEARCHABLE"]`."""

    ids: tuple[int, ...]
    indexes: tuple[SearchIndex, ...]
    """The index that was used for each task."""

    @classmethod
    def of(
        cls,
        arguments: Iterable[tuple[str, str]],
        task: str | None,
        narrow: Callable[[QuerySet[Job]], QuerySet[Job]],
    ) -> "FoundByIndex | None":
        """Return the jobs of one task, or of all tasks, that have one of the arguments and pass the filter `narrow`.

        `None` if there is no index on these arguments, or if too many jobs have the value.
        """
        store = Store.default()
        found_by_task: dict[str, tuple[SearchIndex, list[int]]] = {}
        for name, text in arguments:
            values = _possible_values(text)
            if not all(map(is_scalar, values)):
                continue
            for index in usable(store, name, task):
                if index.task not in found_by_task:
                    limit = counts.MOST_JOBS_COUNTED + 1
                    ids = [id for value in values for id in index.find(store, json.dumps(value), limit=limit)]
                    if len(ids) <= counts.MOST_JOBS_COUNTED:
                        found_by_task[index.task] = index, ids
        if not found_by_task:
            return None
        ids = [id for _, ids_of_task in found_by_task.values() for id in ids_of_task]
        matching_ids = narrow(Job.objects.filter(pk__in=ids)).order_by("-pk").values_list("pk", flat=True)
        return cls(tuple(matching_ids), tuple(index for index, _ in found_by_task.values()))

    @property
    def labels(self) -> str:
        return ", ".join(map(str, self.indexes))


@dataclass(frozen=True, kw_only=True)
class Criteria:
    """Conditions that a job must meet, all of them. A condition that is `None` or empty is ignored."""

    state: str | None = None
    queue_name: str | None = None
    task: str | None = None
    cause: str | None = None
    """The cause of the last error: an exception class, with or without the function, as in `cause_text`."""
    arguments: tuple[tuple[str, str], ...] = ()
    """Names and values as the user typed them: `("payment_id", "42")`, `("order.id", "7")`."""
    text: str = ""
    """A text as in the admin's search box."""
    period: Period = ALWAYS
    """When finished jobs finished, running jobs were claimed, or all other jobs were enqueued."""

    @cached_property
    def indexed(self) -> Indexed:
        return Indexed.covering(self.state, self.queue_name, self.period)

    @property
    def are_searched(self) -> bool:
        """Whether jobs must be searched, because no index finds these criteria."""
        is_narrower = self.period != self.indexed.period
        return bool(self.task or self.cause or self.arguments or self.text) or is_narrower

    @cached_property
    def by_index(self) -> FoundByIndex | None:
        """The jobs that the indexes of `SEARCHABLE` find. With a `task`, these are all jobs that meet the criteria."""
        arguments = [*self.arguments, *Search(self.text).arguments]
        return FoundByIndex.of(arguments, self.task, self.narrow)

    def windows(self) -> Iterator[SearchWindow]:
        return SearchWindow.at(self.indexed, 1).and_all_after()

    def within(self, window: SearchWindow) -> QuerySet[Job]:
        return self.narrow(window.among(window.indexed.jobs()))

    def narrow(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        """Filter these jobs by the criteria."""
        if self.state is not None:
            jobs = jobs.filter(is_in(self.state))
        if self.queue_name is not None:
            jobs = jobs.filter(queue_name=self.queue_name)
        if self.task is not None:
            jobs = jobs.filter(task=self.task)
        if self.cause is not None:
            jobs = jobs.filter(has_raised(self.cause))
        if self.period:
            jobs = jobs.filter(self.period.of(time_column(self.state)))
        for path, value in self.arguments:
            jobs = having_argument(jobs, path, value)
        return Search(self.text).among(jobs) if self.text else jobs
