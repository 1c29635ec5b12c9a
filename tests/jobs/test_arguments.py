"""Typed arguments: from `.defer()` to the function, in rows, and in the tools of operators."""

import datetime
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NewType
from uuid import UUID

import pytest
from django.contrib.auth.models import Group, User
from django.test.utils import CaptureQueriesContext

from django_skipqueue import job
from django_skipqueue.console.admin.verbs.edit import EditForm
from django_skipqueue.exceptions import InvalidArguments, UndecodableArguments
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job
from django_skipqueue.testing import assert_deferred, assert_not_deferred, run_jobs

from ..app import typed_jobs as tasks
from ..app.rows import make_job
from ..app.typed_jobs import Access, Level, Line, Order, Place, Plan, Size
from ..console.cli.running import skipqueue

MOMENT = datetime.datetime(2026, 3, 29, 1, 30, tzinfo=datetime.UTC)
SCALARS = (
    MOMENT, datetime.date(2026, 3, 29), datetime.time(9, 30), datetime.timedelta(hours=36), Decimal("9.90"),
    UUID(int=7),
)  # fmt: skip
STORED_SCALARS = ["2026-03-29T01:30:00+00:00", "2026-03-29", "09:30:00", "P1DT12H00M00S", "9.90", str(UUID(int=7))]

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def received_arguments() -> Iterator[list[Any]]:
    tasks.seen.clear()
    yield tasks.seen
    tasks.seen.clear()


def run_only_job() -> Job:
    (finished_job,) = run_jobs()
    return finished_job


@pytest.fixture
def user() -> User:
    return User.objects.create(username="ada")


def test_scalars_arrive_as_they_were_passed(received_arguments: list[Any]) -> None:
    assert tasks.scalars.defer(*SCALARS).args == STORED_SCALARS
    assert run_only_job().status == "completed"
    assert received_arguments == [SCALARS]


def test_nested_values_arrive_however_they_are_passed(received_arguments: list[Any]) -> None:
    order = Order(MOMENT, [Line("a", Decimal("1.5"), Size.LARGE)], Plan.PAID, Order(MOMENT, []))
    prices = {"eu": [Decimal(1), Decimal("2.50")]}
    plans = (Plan.PAID, Level.HIGH, Access.READ | Access.WRITE)
    days = (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2))
    tasks.nested.defer(order, *days, prices=prices, plans=plans, cents=Decimal(5), shirt=Size.SMALL)  # type: ignore[arg-type]
    assert run_only_job().status == "completed"
    assert received_arguments == [(order, days, prices, plans, Decimal(5), {"shirt": Size.SMALL})]
    assert isinstance(received_arguments[0][5]["shirt"], Size)


def test_defer_many_and_s_encode_arguments_as_defer_does(received_arguments: list[Any]) -> None:
    names = ("at", "day", "time", "span", "price", "key")
    tasks.scalars.defer_many([SCALARS, dict(zip(names, SCALARS, strict=True))])
    assert tasks.scalars.encoded(SCALARS, {}).args == json.dumps(STORED_SCALARS, separators=(",", ":"))
    run_jobs()
    assert received_arguments == [SCALARS, SCALARS]


def test_a_wrong_argument_is_refused_before_anything_is_written() -> None:
    with pytest.raises(InvalidArguments, match="call 1: at is 'tomorrow', but its annotation is datetime"):
        tasks.scalars.defer_many([SCALARS, ("tomorrow", *SCALARS[1:])])
    with pytest.raises(InvalidArguments, match="price is the list"):
        tasks.scalars.defer(*SCALARS[:4], [], SCALARS[5])  # type: ignore[arg-type]
    assert not Job.objects.exists()


@pytest.mark.parametrize("value", [MOMENT, Decimal(1), UUID(int=1), Plan.FREE, Line("a", Decimal(1))])
def test_without_an_annotation_a_value_is_refused_and_the_annotation_advised(value: Any) -> None:
    with pytest.raises(InvalidArguments, match="or annotate it with its type"):
        tasks.plain.defer(1, value)


def test_an_ambiguous_annotation_means_plain_json(received_arguments: list[Any]) -> None:
    with pytest.raises(InvalidArguments, match="which is not JSON"):
        tasks.ambiguous.defer(MOMENT)
    tasks.ambiguous.defer("2026-01-01")
    run_only_job()
    assert received_arguments == ["2026-01-01"]


def test_an_annotation_that_exists_only_for_type_checkers_means_plain_json(received_arguments: list[Any]) -> None:
    tasks.unknown.defer({"a": 1}, MOMENT)
    run_only_job()
    assert received_arguments == [({"a": 1}, MOMENT)]


def test_an_enum_member_is_stored_as_its_value_where_the_annotation_is_the_type_of_the_value(
    received_arguments: list[Any],
) -> None:
    day = datetime.date(2026, 1, 1)
    job = tasks.labelled.defer(Size.SMALL, Level.HIGH, Size.LARGE, plan="x", day=day)
    assert (job.args, job.kwargs) == (["s", 2, "l"], {"plan": "x", "day": "2026-01-01"})
    tasks.labelled.defer_many([{"size": Size.LARGE}])
    assert_deferred(tasks.labelled, size=Size.LARGE)
    run_jobs()
    assert received_arguments == [("s", 2, ("l",), "x", day), ("l", None, (), None, None)]
    assert [type(value) for value in received_arguments[0][:2]] == [str, int]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"size": Level.LOW}, "size is Level.LOW, which would arrive as 1"),
        ({"size": "s", "level": Size.SMALL}, "level is Size.SMALL, which would arrive as 's'"),
        ({"size": Size.SMALL, "plan": Size.SMALL}, "plan is Size.SMALL"),
        ({"size": "s", "plan": [Place("2026-01-01")]}, r"plan\[0\] is a Place, which would arrive as a list"),  # type: ignore[arg-type]
    ],
)
def test_an_enum_member_without_a_fitting_annotation_is_refused(kwargs: Any, message: str) -> None:
    with pytest.raises(InvalidArguments, match=f"{message}.* or annotate it with its type"):
        tasks.labelled.defer(**kwargs)


def test_a_result_without_an_annotation_is_stored_as_its_value() -> None:
    tasks.give_member.defer()
    assert run_only_job().result == ["s", ["2026-03-29", 1]]


def test_a_task_with_only_plain_arguments_has_no_call_types() -> None:
    assert tasks.plain.call_types is None


def test_calling_a_task_passes_its_arguments_unchanged(received_arguments: list[Any]) -> None:
    tasks.scalars(*SCALARS)
    assert received_arguments == [SCALARS]


def test_the_function_of_a_unique_key_gets_python_values() -> None:
    assert tasks.keyed.defer(MOMENT).unique_key == "day-2026-03-29"


# Model instances as arguments


@pytest.mark.parametrize("task", [tasks.with_user, tasks.awith_user])
@pytest.mark.django_db(transaction=True)
def test_a_model_instance_is_stored_as_a_reference_and_fetched_when_the_job_runs(
    user: User, received_arguments: list[Any], task: Any
) -> None:
    assert task.defer(user).args == [{"model": "auth.user", "pk": user.pk, "database": "default"}]
    User.objects.update(username="lovelace")
    assert run_only_job().status == "completed"
    fetched_user = received_arguments[0][0] if isinstance(received_arguments[0], tuple) else received_arguments[0]
    assert (type(fetched_user), fetched_user.pk, fetched_user.username) == (User, user.pk, "lovelace")


def test_the_model_instances_of_a_list_are_fetched_together(user: User, received_arguments: list[Any]) -> None:
    other_users = [*(User.objects.create(username=str(number)) for number in range(5)), None, user]
    tasks.with_user.defer(user, others=other_users, either=Group.objects.create(name="g"))
    from django.db import connection

    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert run_only_job().status == "completed"
    assert received_arguments == [(user, other_users, Group.objects.get())]
    user_queries = [query for query in queries if '"auth_user"' in query["sql"]]
    assert len(user_queries) == 2, "one query for the first argument, and one for the whole list"


def test_a_model_argument_that_was_deleted_fails_the_job_at_once(user: User, received_arguments: list[Any]) -> None:
    tasks.with_user.defer(user)
    User.objects.all().delete()
    finished_job = run_only_job()
    assert (finished_job.status, finished_job.attempts, received_arguments) == ("failed", 1, [])
    assert finished_job.errors[0]["exception"] == "django_skipqueue.exceptions.RowMissing"
    assert f"user is auth.User {finished_job.args[0]['pk']}" in finished_job.last_error
    assert "the database 'default' no longer has" in finished_job.last_error


def test_a_missing_row_discards_the_job_if_discard_on_says_so(user: User) -> None:
    tasks.discards.defer(user)
    User.objects.all().delete()
    assert run_only_job().status == "discarded"


def test_an_atomic_task_fetches_within_its_transaction(user: User) -> None:
    tasks.locked_atomically.defer(user)
    assert run_only_job().status == "completed"


def test_typed_arguments_without_secrets_are_not_masked() -> None:
    finished_job = make_job("failed", task=tasks.scalars.name, args=STORED_SCALARS)
    assert tasks.scalars.redacted(finished_job.args, {}).args == STORED_SCALARS


# Results


def test_a_result_is_stored_by_the_annotation_and_read_back() -> None:
    lines = [Line("a", Decimal("1.50"))]
    tasks.place.defer(lines)
    finished_job = run_only_job()
    assert dict(finished_job.result or {})["lines"] == [{"sku": "a", "price": "1.50", "size": "s"}]
    order = tasks.place.result_of(finished_job)
    assert order == Order(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), lines)


def test_results_of_coroutines_and_of_complete_are_stored_by_the_annotation() -> None:
    tasks.anow.defer()
    assert run_only_job().result == "2026-01-01T00:00:00+00:00"
    tasks.complete_with.defer("1.50")
    finished_job = run_only_job()
    assert (finished_job.result, tasks.complete_with.result_of(finished_job)) == ("1.50", Decimal("1.50"))


@pytest.mark.parametrize(
    ("returned_value", "stored"), [("1.50", "1.50"), ({"a": 1}, {"a": 1}), (0.5, 0.5), (None, None)]
)
def test_a_result_that_does_not_fit_its_annotation_is_stored_as_plain_json(returned_value: Any, stored: Any) -> None:
    tasks.price.defer(returned_value)
    finished_job = run_only_job()
    assert (finished_job.status, finished_job.result) == ("completed", stored)


def test_a_stored_result_that_does_not_fit_the_annotation_is_a_clear_error() -> None:
    with pytest.raises(UndecodableArguments, match="The result was stored as"):
        tasks.price.result_of(make_job("completed", result={"a": 1}))
    assert tasks.price.result_of(make_job("completed")) is None
    assert tasks.plain.result_of(make_job("completed", result=3)) == 3


def test_the_next_job_of_a_chain_has_the_results_in_their_types(received_arguments: list[Any]) -> None:
    predecessors = [
        *(tasks.price.defer(result) for result in ("1.50", {"a": 1}, None)),
        make_job("completed", task=tasks.plain.name, result=3),
        make_job("completed", task="shop.jobs.gone", result="1.50"),
    ]
    tasks.see_results.using(after=predecessors).defer()
    run_jobs(raise_errors=True)
    assert received_arguments == [[Decimal("1.50"), {"a": 1}, None, 3, "1.50"]]


# Deploys


def test_arguments_stored_before_the_annotation_are_read(received_arguments: list[Any]) -> None:
    make_job(
        task=tasks.scalars.name,
        args=["2026-03-29T01:30:00+00:00", *STORED_SCALARS[1:3], 129600, 9.9, STORED_SCALARS[5]],
    )
    assert run_only_job().status == "completed"
    assert received_arguments == [(*SCALARS[:4], Decimal("9.9"), SCALARS[5])]


def test_a_job_whose_arguments_cannot_be_read_is_retried(received_arguments: list[Any]) -> None:
    make_job(task=tasks.with_user.name, args=[42], max_attempts=3)
    finished_job = run_only_job()
    assert (finished_job.status, received_arguments) == ("scheduled", [])
    assert "user was stored as 42, and cannot be read as User" in finished_job.last_error


# Operators


@pytest.mark.django_db(transaction=True)
def test_the_defer_command_takes_json_of_typed_arguments(received_arguments: list[Any]) -> None:
    names = ("at", "day", "time", "span", "price", "key")
    result = skipqueue("defer", "typed_jobs.scalars", json.dumps(dict(zip(names, STORED_SCALARS, strict=True))))
    assert result.code in (0, 1), result.err
    run_only_job()
    assert received_arguments == [SCALARS]


def test_assert_deferred_compares_python_values(user: User) -> None:
    tasks.scalars.defer(*SCALARS)
    tasks.nested.defer(None, datetime.date(2026, 1, 1), shirt=Size.SMALL)
    assert_deferred(tasks.scalars, *SCALARS)
    assert_deferred(tasks.scalars, price=Decimal("9.90"))
    assert_not_deferred(tasks.scalars, price=Decimal("9.91"))
    assert_deferred(tasks.nested, None, datetime.date(2026, 1, 1), shirt=Size.SMALL)
    assert_not_deferred(tasks.nested, None, datetime.date(2026, 1, 2))
    assert_not_deferred(tasks.nested, shirt=Size.LARGE)


def test_the_form_of_the_admin_checks_the_types(user: User) -> None:
    failed_job = make_job("failed", task=tasks.nested.name, args=[None], kwargs={"plans": ["FREE", 1, 3]})
    form = EditForm(failed_job, tasks.nested)
    posted_values = {"confirmed": "yes"} | {name: form.fields[name].initial for name in form.fields}
    assert EditForm(failed_job, tasks.nested, posted_values).is_valid()
    wrong_texts = {"0": "{}", "1": '["soon"]', "2": '{"eu": [0.5]}', "3": '["GOLD", 1, 3]', "5": '{"shirt": "xl"}'}
    edited_form = EditForm(
        failed_job,
        tasks.nested,
        posted_values | {f"argument_{position}": text for position, text in wrong_texts.items()},
    )
    assert not edited_form.is_valid()
    assert set(edited_form.errors) == {f"argument_{position}" for position in wrong_texts}
    assert "Pass one of &#x27;FREE&#x27;, &#x27;PAID&#x27;" in str(edited_form.errors["argument_3"])


def test_the_form_of_the_admin_enqueues_typed_arguments(user: User, received_arguments: list[Any]) -> None:
    failed_job = make_job("failed", task=tasks.with_user.name, args=tasks.with_user.defer(user).args)
    Job.objects.queued().delete()
    form = EditForm(failed_job, tasks.with_user)
    edited_form = EditForm(
        failed_job, tasks.with_user, {"confirmed": "yes", "argument_0": form.fields["argument_0"].initial}
    )
    assert edited_form.is_valid(), edited_form.errors
    edited_form.enqueue()
    run_only_job()
    assert received_arguments == [(user, None, None)]


def test_the_code_shown_in_the_admin_defers_typed_arguments(received_arguments: list[Any], user: User) -> None:
    from django_skipqueue.console.admin.jobs.links import defer_call
    from django_skipqueue.values.redaction import redact

    for task, args in ((tasks.scalars, SCALARS), (tasks.with_user, (user,))):
        deferred_job = task.defer(*args)
        Job.objects.all().delete()
        exec(defer_call(deferred_job, redact(deferred_job.args, deferred_job.kwargs)), {})
        assert run_only_job().status == "completed"
    assert received_arguments == [SCALARS, (user, None, None)]


def late(value: "Later") -> None:
    """A task whose annotation names a class that is defined later in the module."""


def test_registering_evaluates_no_annotation(registry: Registry) -> None:
    task = job(name="shop.late")(late)
    assert task.encoded([Later("1")], {}).args == '["1"]'


Later = Decimal


Number = NewType("Number", int)


def paid(number: Number, amount: float, note: str | None = None, *tags: str, at: Any = None, **more: bool) -> None:
    """A task with the annotations that newcomers write."""


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((7, 1.5), {}, ""),
        ((7, 1), {"note": None, "at": "whatever", "urgent": True}, ""),
        ((7, 1.5, "a note", "b", "c"), {}, ""),
        (("abc", 1.5), {}, "number is 'abc', but its annotation is int."),
        ((7.0, 1.5), {}, "number is 7.0, but its annotation is int."),
        ((None, 1.5), {}, "number is None, but its annotation is int."),
        ((7, "1.5"), {}, "amount is '1.5', but its annotation is float."),
        ((7, 1.5), {"note": 3}, "note is 3, but its annotation is str | None."),
        ((7, 1.5, None, "a", 3), {}, "tags[1] is 3, but its annotation is str."),
        ((7, 1.5), {"urgent": "yes"}, "urgent is 'yes', but its annotation is bool."),
    ],
)
def test_with_debug_on_arguments_must_have_the_types_of_their_annotations(
    registry: Registry, settings: Any, args: tuple[Any, ...], kwargs: dict[str, Any], problem: str
) -> None:
    task: Any = job(paid)
    settings.DEBUG = True
    if problem:
        with pytest.raises(InvalidArguments, match=re.escape(problem)):
            task.encoded(args, kwargs)
        settings.DEBUG = False
    task.encoded(args, kwargs)


def test_the_error_for_an_argument_that_is_not_json_names_its_type(registry: Registry, settings: Any) -> None:
    settings.DEBUG = True
    with pytest.raises(InvalidArguments, match="number is a Group, which is not JSON"):
        job(paid).encoded((Group(), 1.5), {})
