"""Jobs and schedules that a page makes go to the database of their key, if keys choose the database."""

from typing import Any
from unittest.mock import Mock

import pytest
from django.test import Client
from django.urls import reverse

from django_skipqueue import by, job, unique_by
from django_skipqueue.console import parts
from django_skipqueue.jobs.placement import database_of_schedule
from django_skipqueue.jobs.registry import registry
from django_skipqueue.models import Job, Schedule
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import Pruner

from ....app.rows import make_job
from ....console.admin.conftest import messages_of, page
from .parsed import database_of, with_database

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

ADD = "/admin/django_skipqueue/schedule/add/"
BOTH = ("default", "other")


def pay(account: int) -> None:
    """A task whose argument chooses the database."""


@pytest.fixture(autouse=True)
def _placement_by_key(settings: Any, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("registry")
    settings.SKIPQUEUE = {"DATABASES": BOTH, "PLACEMENT": "spread"}
    job(name="pay", shard_by="account")(pay)


def account_in(alias: str) -> int:
    """An account number whose jobs belong to this database."""
    task = registry.get("pay")
    return next(number for number in range(100) if database_of_account(task, number) == alias)


def database_of_account(task: Any, number: int) -> str | None:
    """The database of the jobs of this account."""
    return database_of_schedule(task, task.encoded([], {"account": number}))


@pytest.mark.parametrize("alias", BOTH)
def test_a_schedule_whose_key_belongs_to_another_database_is_refused(operator: Client, alias: str) -> None:
    fields = {"name": "n", "task": "pay", "args": "[]", "cron": "1 1 * * *", "timezone": "UTC"}
    fields |= {"catch_up": "latest", "overlap": "allow", "kwargs": f'{{"account": {account_in(alias)}}}'}
    other_alias = next(name for name in BOTH if name != alias)
    response = operator.post(with_database(ADD, other_alias), fields)
    assert f"belongs in the database {alias}. Add" in response.text
    assert operator.post(with_database(ADD, alias), fields).status_code == 302
    assert [Schedule.objects.using(name).count() for name in (alias, other_alias)] == [1, 0]


@pytest.mark.parametrize("alias", BOTH)
def test_a_job_run_again_with_other_arguments_goes_to_the_database_of_its_key(operator: Client, alias: str) -> None:
    source = make_job("completed", task="pay", using="default", kwargs={"account": account_in("default")})
    address = with_database(page("edit", source.pk), "default")
    form = operator.get(address).context["form"]
    fields = {name: form[name].value() for name in form.fields}
    # the field is found by its label or name, or because the form has no other field
    account_field = next(name for name in fields if "account" in str(form[name].label) + name or len(fields) == 1)
    response = operator.post(address, {**fields, account_field: str(account_in(alias)), "confirmed": "yes"})
    assert response.status_code == 302, response.text
    assert database_of(response.headers["Location"]) == alias
    assert Job.objects.using(alias).filter(kwargs={"account": account_in(alias)}).exclude(pk=source.pk).exists()


def send(**arguments: Any) -> None:
    """A task whose database is chosen by an argument that a call may lack."""


def submit_edit_form(operator: Client, source: Job, **values: str) -> Any:
    """Run the job again with other arguments, by the form that a browser shows."""
    address = with_database(page("edit", source.pk), "default")
    form = operator.get(address).context["form"]
    fields = {name: form[name].value() for name in form.fields}
    return operator.post(address, {**fields, **values, "confirmed": "yes"})


def form_errors(response: Any) -> list[str]:
    assert response.status_code == 200
    errors: list[str] = response.context["form"].non_field_errors()
    return list(errors)


def test_a_call_without_the_argument_that_chooses_the_database_is_a_form_error(operator: Client) -> None:
    job(name="send", shard_by="account")(send)
    source = make_job("completed", task="send", kwargs={"account": 1})
    response = submit_edit_form(operator, source, argument_0='{"other": 1}')
    assert form_errors(response) == ["the call has no argument 'account', which chooses its database."]


def test_keys_that_belong_to_two_databases_are_an_error_of_the_form(operator: Client) -> None:
    job(name="send", unique=unique_by("account"), sequence=by("other"))(send_both)
    source = make_job("completed", task="send", args=[1, 1])
    [error] = form_errors(submit_edit_form(operator, source, argument_1="2"))
    assert error.startswith("send has a unique key and limits with different keys")


def send_both(account: int, other: int) -> None:
    """A task with two keys."""


def test_a_key_of_a_database_that_cannot_be_reached_is_a_form_error(operator: Client, unreachable: str) -> None:
    source = make_job("completed", task="pay", kwargs={"account": account_in("default")})
    response = submit_edit_form(operator, source, argument_0=str(account_in(unreachable)))
    assert form_errors(response) == ["The database other cannot be reached."]


def test_a_database_that_goes_away_during_the_request_is_a_form_error(
    operator: Client, unreachable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_job("completed", task="pay", kwargs={"account": account_in("default")})
    monkeypatch.setattr(parts, "can_be_reached", Mock(side_effect=[True, False]))
    response = submit_edit_form(operator, source, argument_0=str(account_in(unreachable)))
    assert form_errors(response) == ["The database other cannot be reached."]


# Copies


def run_again(operator: Client, job: Job) -> list[str]:
    """Press the button "Run again as a new job", and return what the page says then."""
    address = with_database(page("run_again", job.pk), "default")
    return messages_of(operator.post(address, {"confirmed": "yes"}, follow=True))


def charge(account: int) -> None:
    """A task with a unique key."""


def make_job_outside_of_its_database(alias: str, status: str = "completed") -> Job:
    """Make a job in `default` whose unique key belongs to this database, as if the database was added later."""
    task: Any = job(name="charge", unique=unique_by("account"))(charge)
    number = next(number for number in range(100) if database_of_account(task, number) == alias)
    unique_key = task.encoded([], {"account": number}).unique_key
    return make_job(status, task="charge", kwargs={"account": number}, unique_key=unique_key)


def test_a_copy_stays_in_the_database_of_the_shard_key_of_its_job(operator: Client) -> None:
    task: Any = job(name="charge", unique=unique_by("account"))(charge)
    handles = ((number, task.using(shard_key=number).defer(number).handle) for number in range(100))
    shard = next(number for number, handle in handles if handle.startswith("default:"))
    source = Job.objects.using("default").get(kwargs={}, args=[shard])
    source.discard()
    run_again(operator, source)
    assert Job.objects.using("default").queued().filter(args=[shard]).exists()


def test_a_copy_is_not_made_while_a_job_elsewhere_holds_the_key(operator: Client) -> None:
    source = make_job_outside_of_its_database("other")
    holder = registry.get("charge").defer(**source.kwargs)
    assert holder.handle == f"other:{holder.pk}"
    [message] = run_again(operator, source)
    assert f"because job {holder.handle}, which is queued, holds" in message
    assert Job.objects.using("default").count() == 1
    holder.discard()
    run_again(operator, source)
    assert Job.objects.using("default").queued().get().unique_key == source.unique_key


def test_no_copy_is_made_while_the_database_of_the_key_cannot_be_reached(operator: Client, unreachable: str) -> None:
    source = make_job_outside_of_its_database(unreachable)
    assert run_again(operator, source) == ["The database other cannot be reached."]
    assert Job.objects.using("default").count() == 1


def test_no_copy_of_an_archived_job_is_made_while_its_key_is_held_elsewhere(operator: Client, settings: Any) -> None:
    source = make_job_outside_of_its_database("other")
    settings.SKIPQUEUE |= {"ARCHIVE": None, "RETENTION": {"completed": 0}}
    Pruner(Store("default")).batch()
    holder = registry.get("charge").defer(**source.kwargs)
    address = reverse("admin:django_skipqueue_archivedjob_run_again", args=[source.pk])
    response = operator.post(with_database(address, "default"), {"confirmed": "yes"}, follow=True)
    assert f"because job {holder.handle}, which is queued, holds" in messages_of(response)[0]
    assert not Job.objects.using("default").exists()


def test_a_copy_whose_key_belongs_to_its_database_asks_no_other_database(operator: Client, unreachable: str) -> None:
    source = make_job_outside_of_its_database("default")
    run_again(operator, source)
    assert Job.objects.using("default").queued().exists()
