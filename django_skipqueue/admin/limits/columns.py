"""The columns of the list of keys. A further one is a function of a `LimitState`, and an entry in `COLUMNS`."""

from collections.abc import Callable
from typing import Any, NamedTuple

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...models import Status
from ...operators.counts import grouped
from ...operators.durations import span
from ...operators.limit_states import LimitState
from ..ui.cells import badge

Cell = SafeString | str


class Column(NamedTuple):
    name: str
    """For the style sheet: the class of its cells is `field-NAME`."""
    title: Any
    cell: Callable[[LimitState], Cell]


def _key(state: LimitState) -> Cell:
    return format_html('<a class="skipqueue-name" href="{}">{}</a>', _waiting_jobs(state), state.key)


def _state(state: LimitState) -> Cell:
    if state.halted is None:
        return badge(Status.BLOCKED.value, gettext("waits"))
    address = reverse("admin:django_skipqueue_job_change", args=[state.halted.job_id])
    failed = gettext("job %(id)s failed %(age)s ago") % {"id": state.halted.job_id, "age": span(state.halted.seconds)}
    return format_html(
        '{} <a class="skipqueue-detail" href="{}">{}</a>', badge("failed", gettext("halted")), address, failed
    )


def _held(state: LimitState) -> Cell:
    if state.now.capacity is None or state.now.kind == "fair":  # it has no limit
        return str(state.held)
    return gettext("%(held)s of %(capacity)s") % {"held": state.held, "capacity": grouped(state.now.capacity)}


def _waiting_jobs(state: LimitState) -> str:
    """The address of the list of its waiting jobs. The key may have a secret in it, so it names a job of the key."""
    query = {"status": Status.BLOCKED.value, "limit_of": str(state.now.next_id)}
    return reverse("admin:django_skipqueue_job_changelist", query=query)


COLUMNS = (
    Column("key", _("key"), _key),
    Column("kind", _("kind"), lambda state: state.kind),
    Column("state", _("state"), _state),
    Column("held", _("permits held"), _held),
    Column("waiting", _("jobs wait"), lambda state: str(state.waiting)),
    Column("oldest", _("oldest job"), lambda state: span(state.oldest)),
)


def rows(states: list[LimitState]) -> list[list[tuple[Column, Cell]]]:
    return [[(column, column.cell(state)) for column in COLUMNS] for state in states]
