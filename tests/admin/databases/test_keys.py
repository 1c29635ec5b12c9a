"""What is made on a page goes where its key belongs, if databases are chosen by keys."""

from typing import Any

import pytest
from django.test import Client

from django_skipqueue import job
from django_skipqueue.models import Job, Schedule
from django_skipqueue.tasks.registry import registry
from django_skipqueue.tasks.shards import database_of_schedule

from ...app.rows import make_job
from ..conftest import page
from .parsed import alias_of, with_alias

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

ADD = "/admin/django_skipqueue/schedule/add/"
BOTH = ("default", "other")


def pay(account: int) -> None:
    """A task whose argument chooses the database."""


@pytest.fixture(autouse=True)
def _spread(settings: Any, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("registry")
    settings.SKIPQUEUE = {"DATABASES": BOTH, "PLACEMENT": "spread"}
    job(name="pay", shard_by="account")(pay)


def account_of(alias: str) -> int:
    """An argument that belongs to this database."""
    task = registry.get("pay")
    calls = ((number, task.encoded([], {"account": number})) for number in range(100))
    return next(number for number, call in calls if database_of_schedule(task, call) == alias)


@pytest.mark.parametrize("alias", BOTH)
def test_a_schedule_whose_key_belongs_to_another_database_is_refused(operator: Client, alias: str) -> None:
    fields = {"name": "n", "task": "pay", "args": "[]", "cron": "1 1 * * *", "timezone": "UTC"}
    fields |= {"catch_up": "latest", "overlap": "allow", "kwargs": f'{{"account": {account_of(alias)}}}'}
    elsewhere = next(each for each in BOTH if each != alias)
    response = operator.post(with_alias(ADD, elsewhere), fields)
    assert f"belongs to the database {alias}. Add" in response.text
    assert operator.post(with_alias(ADD, alias), fields).status_code == 302
    assert [Schedule.objects.using(each).count() for each in (alias, elsewhere)] == [1, 0]


@pytest.mark.parametrize("alias", BOTH)
def test_a_job_with_other_arguments_goes_where_its_key_belongs(operator: Client, alias: str) -> None:
    source = make_job("completed", task="pay", using="default", kwargs={"account": account_of("default")})
    address = with_alias(page("edit", source.pk), "default")
    form = operator.get(address).context["form"]
    fields = {name: form[name].value() for name in form.fields}
    named = next(name for name in fields if "account" in str(form[name].label) + name or len(fields) == 1)
    response = operator.post(address, {**fields, named: str(account_of(alias)), "confirmed": "yes"})
    assert response.status_code == 302, response.text
    assert alias_of(response.headers["Location"]) == alias
    assert Job.objects.using(alias).filter(kwargs={"account": account_of(alias)}).exclude(pk=source.pk).exists()
