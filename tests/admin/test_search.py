"""`search`: what is typed into the box, as a condition."""

from typing import Any

import pytest

from django_skipqueue.admin.search import Search
from django_skipqueue.models import Job

from ..app.rows import make_job

pytestmark = pytest.mark.django_db


def found(text: str) -> set[int]:
    return set(Search(text).among(Job.objects.all()).values_list("pk", flat=True))


def test_a_number_is_an_id() -> None:
    job, other = make_job(), make_job(kwargs={"n": 1})
    assert found(str(job.pk)) == found(f"#{job.pk}") == {job.pk}
    assert Search(f"#{other.pk}").names_an_id
    assert not Search("receipt").names_an_id


@pytest.mark.parametrize("text", ["receipt", "RECEIPT", "payments.jobs", '"send_receipt"'])
def test_a_word_is_a_part_of_a_tasks_name(text: str) -> None:
    job = make_job(task="payments.jobs.send_receipt")
    make_job(task="reports.jobs.build")
    assert found(text) == {job.pk}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (42, "payment_id=42"),
        ("42", "payment_id=42"),
        ("42", 'payment_id="42"'),
        ("a b", 'payment_id="a b"'),
        ("x@example.com", "payment_id=x@example.com"),
        (True, "payment_id=true"),
        (None, "payment_id=null"),
        (1.5, "payment_id=1.5"),
        ({"a": 1, "b": 2}, 'payment_id={"a":1}'),
    ],
)
def test_an_argument_is_found_by_its_name_and_value(value: Any, text: str) -> None:
    job = make_job(kwargs={"payment_id": value, "other": 1})
    make_job(kwargs={"payment_id": "something else", "other": 42})
    assert found(text) == {job.pk}


def test_an_argument_that_was_passed_by_place_is_found_by_its_name() -> None:
    job = make_job(task="tests.app.jobs.add", args=[1, 42])
    make_job(task="tests.app.jobs.add", args=[42, 1])
    make_job(task="tests.app.jobs.echo", args=[1, 42])
    assert found("b=42") == {job.pk}


def test_all_words_must_match() -> None:
    job = make_job(task="payments.jobs.send_receipt", kwargs={"payment_id": 42})
    make_job(task="payments.jobs.send_receipt")
    make_job(task="payments.jobs.refund", kwargs={"payment_id": 42})
    assert found("receipt payment_id=42") == {job.pk}


@pytest.mark.parametrize(
    "text",
    ["", "  ", "'", '"', "=", "a=", "a\0b", "x=NaN", "x=1e999", "x=[", "x=" + "[" * 990, "%", "9" * 40, "٣", "\ud800"],
)
def test_nothing_that_can_be_typed_is_an_error(text: str) -> None:
    make_job()
    found(text)
