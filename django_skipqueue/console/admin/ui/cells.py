"""Columns and cells of tables.

A cell is short, and safe for any content of the row. A column has a name, a title, and a function that returns the cell
for a row.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from django.contrib.admin.utils import quote
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ....models import Job
from ....values.fact import Fact
from ....values.records import worker_name
from ....values.redaction import Redacted
from ...arguments import names_in_order
from ...facts import Renderers, columns, on_page
from ...job_states import STATES, state_of
from ...queues_and_workers import MAX_LINKED_NAME_LENGTH
from .addresses import address_of

CELL_LIMIT = 120
"""The maximum number of characters in a cell."""


def badge(status: str, label: str | Promise) -> SafeString:
    return format_html('<span class="skipqueue-badge" data-status="{}">{}</span>', status, label)


def badge_of(job: Job) -> SafeString:
    state = state_of(job)
    return badge(state, STATES[state])


def shortened(text: str) -> str:
    return text if len(text) <= CELL_LIMIT else f"{text[: CELL_LIMIT - 1]}…"


def job_link(job_id: int, text: str) -> SafeString:
    template = '<a href="{}">{} <span class="skipqueue-detail">#{}</span></a>'
    return format_html(template, address_of("job_change", job_id), shortened(text), job_id)


def queue_link(name: str) -> SafeString:
    """Return the queue's name with a link to its page."""
    return _page_link("queue", name, name)


def worker_link(worker_id: str, text: str = "") -> SafeString:
    """Return the worker's name, or this text, with a link to the worker's page."""
    return _page_link("worker", worker_id, text or worker_name(worker_id))


def _page_link(model: str, pk: str, text: str) -> SafeString:
    # django_skipqueue never stores an empty or longer name, but another program may have written the row.
    if not pk or len(pk) > MAX_LINKED_NAME_LENGTH:
        return format_html("{}", shortened(text))
    return format_html('<a href="{}">{}</a>', address_of(f"{model}_change", quote(pk)), shortened(text))


def task_link(task: str, text: str = "") -> SafeString:
    """Return the task's name, or this text, with a link to the task's page, unless the name is too long for a URL."""
    label = shortened(text) if text else format_html('<span class="skipqueue-name">{}</span>', shortened(task))
    if len(task) > MAX_LINKED_NAME_LENGTH:
        return format_html("{}", label)
    address = address_of("job_task", query={"task": task})
    return format_html('<a href="{}">{}</a>', address, label)


def arguments(task: str, masked_call: Redacted) -> str:
    """Return the arguments as in a call: `payment_id=42, email="x"`. Without a known parameter name, show the value."""
    as_json = partial(json.dumps, ensure_ascii=False)
    names = names_in_order(task, masked_call.args)
    texts = [f"{name}={as_json(value)}" for name, value in zip(names, masked_call.args, strict=False)]
    texts += [as_json(value) for value in masked_call.args[len(names) :]]
    texts += [f"{name}={as_json(value)}" for name, value in masked_call.kwargs.items()]
    return shortened(", ".join(texts))


T = TypeVar("T")

Cell = SafeString | str


class Column(NamedTuple, Generic[T]):
    name: str
    """The column's cells get the CSS class `field-NAME`."""
    title: Any
    cell: Callable[[T], Cell]


def columns_of(facts: Sequence[Fact[T]], subjects: Sequence[T], renderers: Renderers[T]) -> tuple[Column[T], ...]:
    """Return the columns of a table of `subjects`. A fact without a function in `renderers` is shown as text."""
    return tuple(
        Column(fact.name, fact.title, renderer or partial(plain_cell, fact))
        for fact, renderer in columns(facts, subjects, renderers)
    )


def plain_cell(fact: Fact[T], subject: T) -> Cell:
    return shortened(on_page(fact, subject))


Rows = list[list[tuple[Column[T], Cell]]]
"""For each row: pairs of a column and its cell."""


def rows(columns: Iterable[Column[T]], listed: Iterable[T]) -> Rows[T]:
    return [[(column, column.cell(subject)) for column in columns] for subject in listed]


class Table(Generic[T]):
    """A table for the template `ui/table.html`."""

    def __init__(self, columns: Sequence[Column[T]], listed: Sequence[T]) -> None:
        self.columns = columns
        self.rows = rows(columns, listed)
