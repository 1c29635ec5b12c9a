"""How facts are rendered: in JSON, in a table of the terminal, on a page, and as a gauge."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_skipqueue.console.admin.queue_columns import QUEUE_CELLS
from django_skipqueue.console.admin.ui.cells import columns_of
from django_skipqueue.console.counts import Count
from django_skipqueue.console.facts import NOTHING, as_json, columns, in_terminal, on_page, series_of
from django_skipqueue.console.queues_and_workers import QUEUE, QueueState
from django_skipqueue.queue.observe import QueueNow
from django_skipqueue.values.fact import Fact, Unit

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass
class Subject:
    value: Any
    now: datetime = NOW


def fact(unit: Unit = "", **options: Any) -> Fact[Subject]:
    return Fact("name", "Title", lambda subject: subject.value, unit, **options)


@pytest.mark.parametrize(
    ("value", "unit", "terminal", "page"),
    [
        ("text", "", "text", "text"),
        (["a", 5], "", "a, 5", "a, 5"),
        (None, "", "", NOTHING),
        (12_345, "jobs", "12,345", "12,345"),
        (Count(20, cap=10), "jobs", "10+", "10+"),
        (200.0, "seconds", "3m20s", "3 min 20 s"),
        (-1.0, "seconds", "0s", "0 ms"),
        (0.44, "jobs per minute", "0.4", "0.4"),
        (1_234.5, "jobs per minute", "1,234", "1,234"),
        (NOW - timedelta(minutes=3), "time", "3 min ago", "3 min ago"),
    ],
)
def test_a_value_is_written_in_the_form_of_its_unit(value: Any, unit: Unit, terminal: str, page: str) -> None:
    assert in_terminal(fact(unit), Subject(value)) == terminal
    assert on_page(fact(unit), Subject(value)) == page


def test_a_fact_may_have_another_name_in_json_or_be_left_out() -> None:
    facts = [fact(), fact(field="other"), fact(field=None)]
    assert as_json(facts, Subject(5)) == {"name": 5, "other": 5}
    assert as_json(facts[:1], Subject(Count(20, cap=10))) == {"name": {"count": 10, "or_more": True}}


@pytest.mark.parametrize(
    ("values", "is_shown"),
    [([None, None], False), ([None, 0], True), ([Count(0)], False), ([Count(0, is_lower_bound=True)], True)],
)
def test_an_optional_column_is_shown_only_with_a_value(values: list[Any], is_shown: bool) -> None:
    shown_columns = columns([fact(is_optional=True)], [Subject(value) for value in values], {})
    assert bool(shown_columns) is is_shown


def test_a_renderer_replaces_the_text_of_a_column_or_hides_the_column() -> None:
    assert columns([fact()], [], {"name": None}) == []
    [(_, renderer)] = columns([fact()], [], {"name": str})
    assert renderer is str


@pytest.mark.parametrize(
    ("values", "unit", "expected"),
    [
        ([1, Count(4), None], "jobs", 5),
        ([1.5, 3.5, None], "seconds", 3.5),
        ([None], "seconds", 0.0),
        ([True, False], "", 1),
        ([NOW, NOW - timedelta(hours=1)], "time", NOW.timestamp()),
        ([None], "time", None),
    ],
)
def test_the_values_of_several_subjects_are_joined_to_one_metric(
    values: list[Any], unit: Unit, expected: float | None
) -> None:
    assert series_of(fact(unit), [Subject(value) for value in values]) == expected


def test_an_added_fact_of_a_queue_is_rendered_in_json_on_the_page_and_in_the_terminal() -> None:
    late_workers: Fact[QueueState] = Fact("late", "late", lambda _queue: 7, "jobs", "late_workers")
    facts, queue = (*QUEUE, late_workers), QueueState(QueueNow("mail"))
    assert as_json(facts, queue)["late_workers"] == 7
    column = next(column for column in columns_of(facts, [queue], QUEUE_CELLS) if column.name == "late")
    assert column.cell(queue) == "7"
    assert in_terminal(late_workers, queue) == "7"
