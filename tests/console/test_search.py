"""`search`: which jobs a text in the search box finds."""

from typing import Any

import pytest
from django.db.models import Q

from django_skipqueue import job
from django_skipqueue.console import search
from django_skipqueue.console.search import Search
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job

from ..app.rows import make_job
from ..harness.table import Case

pytestmark = pytest.mark.django_db


def found_ids(text: str) -> set[int]:
    return set(Search(text).among(Job.objects.all()).values_list("pk", flat=True))


def test_a_number_is_an_id_or_a_value() -> None:
    job = make_job()
    job_with_value = make_job(kwargs={"n": job.pk})
    assert found_ids(f"#{job.pk}") == {job.pk}
    assert found_ids(str(job.pk)) == {job.pk, job_with_value.pk}
    assert Search(f"#{job_with_value.pk}").names_an_id
    assert not Search("receipt").names_an_id


def test_a_word_is_a_part_of_a_tasks_name() -> None:
    job = make_job(task="payments.jobs.send_receipt")
    make_job(task="reports.jobs.build")
    for text in ("receipt", "RECEIPT", "payments.jobs", '"send_receipt"'):
        assert found_ids(text) == {job.pk}, text


def test_an_argument_is_found_by_its_name_and_value(case: Case) -> None:
    cases: list[tuple[Any, str]] = [
        (42, "payment_id=42"),
        ("42", "payment_id=42"),
        ("42", 'payment_id="42"'),
        ("a b", 'payment_id="a b"'),
        ("x@example.com", "payment_id=x@example.com"),
        (True, "payment_id=true"),
        (None, "payment_id=null"),
        (1.5, "payment_id=1.5"),
        ({"a": 1, "b": 2}, 'payment_id={"a":1}'),
    ]
    for value, text in cases:
        with case(value=value, text=text):
            job = make_job(kwargs={"payment_id": value, "other": 1})
            make_job(kwargs={"payment_id": "something else", "other": 42})
            assert found_ids(text) == {job.pk}


def test_a_positional_argument_is_found_by_its_name() -> None:
    job = make_job(task="tests.app.jobs.add", args=[1, 42])
    make_job(task="tests.app.jobs.add", args=[42, 1])
    make_job(task="tests.app.jobs.echo", args=[1, 42])
    assert found_ids("b=42") == {job.pk}


def test_all_words_of_the_text_must_match() -> None:
    job = make_job(task="payments.jobs.send_receipt", kwargs={"payment_id": 42})
    make_job(task="payments.jobs.send_receipt")
    make_job(task="payments.jobs.refund", kwargs={"payment_id": 42})
    assert found_ids("receipt payment_id=42") == {job.pk}


ODD_TEXTS = [
    "", "  ", "'", '"', "=", "a=", "a\0b", "x=NaN", "x=1e999", "x=[", "x=" + "[" * 990, "%", "9" * 40, "٣", "\ud800",
]  # fmt: skip


def test_no_text_in_the_search_box_raises_an_error(case: Case) -> None:
    for text in ODD_TEXTS:
        with case(text=text):
            make_job()
            found_ids(text)


TEXTS_OF_VALUES = [
    "order_id:1017", "order_id = 1017", "order_id: 1017", "payload.order.id=3", "order.id=3", "id=3",
    "items.sku=b7", "sku=b7", "note=null", "1017", "b7", "customers", "stomer",
    "cust \"omers of\"", 'say="\\"hi\\""',
]  # fmt: skip


def test_a_nested_value_is_found_with_or_without_its_name(subtests: pytest.Subtests) -> None:
    payload = {"order": {"id": 3}, "items": [{"sku": "a1"}, {"sku": "b7"}], "to": "customers of ours", "note": None}
    job = make_job(kwargs={"order_id": 1017, "payload": payload, "say": '"hi"'})
    by_position = make_job(args=[{"order_id": 1017, "payload": payload, "say": '"hi"'}])
    make_job(kwargs={"order_id": 1018, "payload": {"order": {"id": "4"}}}, args=[3])
    for text in TEXTS_OF_VALUES:
        with subtests.test(text=text):
            assert found_ids(text) >= {job.pk}
            if "." not in text:
                assert found_ids(text) == {job.pk, by_position.pk}


TEXTS_OF_ERROR = [
    "KeyError", "keyerror", "psp_reference", "KeyError: 'psp_reference'", "shop.errors.KeyError",
    "shop.errors.KeyError: psp_reference", "KeyError:", "'psp_reference'", "reference",
]  # fmt: skip


@pytest.mark.parametrize("status", ["failed", "scheduled", "discarded"])
def test_an_error_is_found_by_any_part_of_its_text(status: str, subtests: pytest.Subtests) -> None:
    job = make_job(status, last_error="KeyError: 'psp_reference'")
    make_job(status, last_error="ValueError: busy")
    for text in TEXTS_OF_ERROR:
        with subtests.test(text=text):
            assert found_ids(text) == {job.pk}


def test_results_and_queues_are_found() -> None:
    job = make_job("completed", result={"receipt": "R-2026-7"}, queue_name="invoices")
    make_job("completed")
    assert found_ids("R-2026-7") == found_ids("receipt=R-2026-7") | {job.pk} == found_ids("invoic") == {job.pk}


SECRETS: list[dict[str, Any]] = [
    {"kwargs": {"token": "hunter2"}},
    {"kwargs": {"login": {"accessToken": "hunter2"}}},
    {"kwargs": {"login": [{"API-KEY": {"id": "hunter2"}}]}},
    {"kwargs": {"api\nkey": "hunter2"}},
    {"kwargs": {'a "token" b': "hunter2"}},
    {"kwargs": {"stripeAPIKey": "hunter2"}},
    {"args": [{"pass": 1, "user_password": "hunter2"}]},
    {"result": {"secret": "hunter2"}},
]
GUESSES = ["hunter2", "unter", "token=hunter2", "id=hunter2", "wrong", "Refused: hunter2", "api.key=hunter2"]


def test_a_masked_value_cannot_be_found(case: Case) -> None:
    for secret in SECRETS:
        with case(secret=secret):
            job = make_job("failed", last_error="Refused: hunter2 is wrong", task="a.b.login", **secret)
            assert [text for text in GUESSES if found_ids(text)] == []
            assert found_ids("login") == found_ids("Refused") == found_ids("a.b.login Refused") == {job.pk}


@pytest.mark.parametrize("status", ["discarded", "queued", "running"])
def test_a_reason_to_discard_is_not_searched_as_an_exception(status: str) -> None:
    make_job(status, kwargs={"token": "hunter"}, last_error="hunter: unknown")
    assert found_ids("hunter") == found_ids("hunt") == found_ids("hunter: unknown") == set()


def test_an_argument_whose_name_resembles_a_secret_can_be_found() -> None:
    job = make_job(kwargs={"max_tokens": 5, "prompt": 'what is a token? it is: "x"'})
    assert found_ids("prompt") == found_ids("token?") == found_ids("max_tokens=5") == {job.pk}


def test_an_argument_that_its_task_redacts_cannot_be_found(registry: Registry) -> None:
    task = job(redact=["pin"])(login_task)
    job_with_pin = make_job(task=task.name, args=["ann", "4711"], last_error="E: 4711")
    assert found_ids("4711") == found_ids("pin=4711") == found_ids("E: 4711") == set()
    assert found_ids("user=ann") == {job_with_pin.pk}


def login_task(user: str, pin: str) -> None:
    """A task whose argument `pin` is secret."""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (42, "n=42.0"),
        (100, "n=1e2"),
        (42.0, "n=42"),
        (0, "n=-0"),
        (1.5, "n=1.50"),
        ("A_b.C", "n=A_b.C"),
        ("hi there", 'n="hi there"'),
        ("dé", "n=dé"),
        ([1, 2], "n=[1,2]"),
        ({"a": 1.0}, 'n={"a":1}'),
        ("x" * 20_000 + "y", "n=" + "x" * 20 + "y"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_the_fast_condition_before_the_exact_one_leaves_no_match_out(
    value: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job(kwargs={"n": value})
    make_job(kwargs={"n": value, "large": "z" * 20_000})
    make_job(args=[[{"n": value}]])
    make_job("failed", last_error=f"N: {value}"[:200])
    ids_by_fast_condition = found_ids(text)
    monkeypatch.setattr(search, "may_have", lambda *_: Q())
    assert ids_by_fast_condition == found_ids(text)


def test_a_large_column_is_searched_by_the_name_of_an_argument() -> None:
    large = make_job(kwargs={"n": 42, "large": list(range(10_000))})
    assert found_ids("n=42") == {large.pk}
    assert set(search.having_argument(Job.objects.all(), "n", "42").values_list("pk", flat=True)) == {large.pk}


@pytest.mark.parametrize("text", ["exception=shop.errors.KeyError", "KeyError=shop.KeyError", "error:KeyError"])
def test_an_error_is_found_by_the_last_part_of_its_class(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_job("failed", last_error="KeyError: 'x'")
    make_job("failed", last_error="error:KeyError")
    make_job("failed", last_error="ValueError: 'x'")
    ids_by_fast_condition = found_ids(text)
    assert ids_by_fast_condition
    monkeypatch.setattr(search, "may_have", lambda *_: Q())
    assert ids_by_fast_condition == found_ids(text)
