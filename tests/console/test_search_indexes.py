"""`search_indexes`: a search by an argument in `SEARCHABLE` finds all jobs of the task, however old they are."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_skipqueue import job as task_of
from django_skipqueue.console import counts, search
from django_skipqueue.console.cli.indexes import DROP_INDEX, change_index
from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.console.search_indexes import SearchIndex, existing, problems, wanted
from django_skipqueue.models import Job

from ..app.rows import DEFAULT, make_job, make_worker
from ..queue.test_sql import nodes
from .admin.conftest import LIST, listed
from .cli.running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)

ADD, ECHO = "tests.app.jobs.add", "tests.app.jobs.echo"
NOTE = f"All jobs of these tasks were searched, by an index: {ADD} (a)."


@pytest.fixture
def client(django_user_model: Any) -> Client:
    client = Client()
    client.force_login(django_user_model.objects.create_superuser("ann"))
    return client


@pytest.fixture(autouse=True)
def index_of_first_argument(transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make an index of the task's first argument, and let each page search only the newest two jobs."""
    settings.SKIPQUEUE = {**getattr(settings, "SKIPQUEUE", {}), "SEARCHABLE": {ADD: ["a"]}}
    monkeypatch.setattr(search, "WINDOW_SIZE", 2)
    assert skipqueue("index").code == 0
    yield
    for index in existing(DEFAULT):
        change_index(DEFAULT, DROP_INDEX, schema=index.schema, name=index.name)
    connection.close()


def make_newer_jobs(count: int = 5) -> None:
    for number in range(count):
        make_job("completed", task=ADD, args=[100 + number])


def page_text(client: Client, address: str) -> str:
    return " ".join(client.get(LIST + address).text.split())


def found_in_terminal(*options: str) -> list[int]:
    return [found_job["id"] for found_job in skipqueue("list", *options, "--json").objects]


def test_an_index_finds_old_jobs_by_positional_and_keyword_arguments(client: Client) -> None:
    by_position = make_job("completed", task=ADD, args=[7])
    by_name = make_job("failed", task=ADD, kwargs={"a": 7, "b": 1})
    as_text = make_job(task=ADD, kwargs={"a": "7"})
    make_job(task=ADD, args=[1, 7])
    make_job(task=ECHO, args=[7], kwargs={"a": 7})
    make_newer_jobs()
    expected_ids = [as_text.pk, by_name.pk, by_position.pk]
    assert listed(client, "?q=a=7") == expected_ids
    assert NOTE in page_text(client, "?q=a=7")
    assert listed(client, "?q=a=7&status=failed") == [by_name.pk]
    assert listed(client, '?q=a="7"') == [as_text.pk]
    assert found_in_terminal("--arg", "a=7") == found_in_terminal("--search", "a=7") == expected_ids
    assert found_in_terminal("--arg", "a=7", "--failed") == [by_name.pk]
    assert NOTE in skipqueue("list", "--arg", "a=7").err


def test_a_search_for_one_indexed_task_covers_all_its_jobs(client: Client) -> None:
    old_job = make_job("completed", task=ADD, args=[7])
    make_newer_jobs()
    for address in (f"?q=a=7&task={ADD}", f"?q=a=7&task={ADD}&status=completed"):
        assert listed(client, address) == [old_job.pk]
        assert NOTE in page_text(client, address)
        assert "Not searched" not in page_text(client, address)
        tabs = {tab.state: str(tab.count) for tab in client.get(LIST + address).context["cl"].tabs if tab.count}
        assert (tabs["completed"], tabs["failed"]) == ("1", "0")
    text = page_text(client, f"?q=a=8&task={ADD}")
    assert "No match." in text
    assert NOTE in text
    result = skipqueue("list", "--task", ADD, "--arg", "a=7", "--json")
    assert [found_job["id"] for found_job in result.objects] == [old_job.pk]
    assert "Not searched" not in result.err
    assert skipqueue("list", "--task", ADD, "--arg", "a=8").code == Exit.NEGATIVE


def test_other_words_and_filters_narrow_a_search_by_index(client: Client) -> None:
    matching_job = make_job("completed", task=ADD, kwargs={"a": 7, "b": 5}, queue_name="mail")
    make_job("completed", task=ADD, kwargs={"a": 7, "b": 6}, queue_name="mail")
    make_job("completed", task=ADD, kwargs={"a": 7, "b": 5}, queue_name="other")
    make_newer_jobs()
    for task in ("", f"&task={ADD}"):
        assert listed(client, f"?q=a=7 b=5&queue=mail{task}") == [matching_job.pk]
    assert found_in_terminal("--arg", "a=7", "--arg", "b=5", "--queue", "mail") == [matching_job.pk]


def test_jobs_of_other_tasks_are_searched_page_by_page(client: Client) -> None:
    old_job = make_job(task=ADD, args=[7])
    old_job_of_other_task = make_job(task=ECHO, kwargs={"a": 7})
    make_newer_jobs()
    new_job = make_job(task=ECHO, kwargs={"a": 7})
    assert listed(client, "?q=a=7") == [new_job.pk, old_job.pk]
    assert "Only the first 2 jobs were searched" in page_text(client, "?q=a=7")
    assert found_in_terminal("--arg", "a=7") == [old_job.pk, new_job.pk]
    assert sorted(found_in_terminal("--arg", "a=7", "--all")) == [old_job.pk, old_job_of_other_task.pk, new_job.pk]
    ids_of_all_windows = [pk for look in range(1, 5) for pk in listed(client, f"?q=a=7&look={look}")]
    assert sorted(ids_of_all_windows) == [old_job.pk, old_job_of_other_task.pk, new_job.pk]


def test_an_action_on_a_search_by_index_changes_each_job_once(client: Client) -> None:
    make_worker()
    jobs = [make_job("failed", task=ADD, args=[7]) for _ in range(3)]
    make_newer_jobs()
    for task in (f"&task={ADD}", ""):
        Job.objects.filter(pk__in=[job.pk for job in jobs]).update(
            status="failed", finished_at=jobs[0].finished_at, gate=None
        )
        answer = {"action": "retry_selected", "_selected_action": "all", "select_across": "1"}
        question = client.post(f"{LIST}?q=a=7&status=failed{task}", answer).text
        assert "Retry 3 jobs?" in question or not task, (
            "without the filter by task, only a part of the list is searched"
        )
    assert skipqueue("retry", "--failed", "--arg", "a=7", "--yes").err.startswith("3 jobs retried")
    assert Job.objects.queued().filter(task=ADD).count() == 3


@pytest.mark.parametrize("search", ["b=7", "order.a=7", "a=[7]", "a"])
def test_an_argument_without_an_index_is_searched_among_the_newest_jobs(client: Client, search: str) -> None:
    make_job(task=ADD, args=[7])
    make_newer_jobs()
    assert NOTE not in page_text(client, f"?q={search}")
    # Only the search for "a" finds jobs: the letter is a part of the name of the task.
    assert listed(client, f"?q={search}") in ([], listed(client, "?q=a"))


def test_a_value_of_very_many_jobs_is_searched_among_the_newest_jobs(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index finds so many jobs that filtering all of them could take long."""
    monkeypatch.setattr(counts, "MOST_JOBS_COUNTED", 3)
    for _ in range(4):
        make_job(task=ADD, args=[7])
    make_newer_jobs()
    assert NOTE not in page_text(client, "?q=a=7")
    assert listed(client, "?q=a=7") == []


@pytest.mark.parametrize(
    "statement", ["DROP INDEX {}", "UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{}'::regclass"]
)
def test_an_index_that_is_missing_or_invalid_is_not_used(client: Client, statement: str) -> None:
    make_job(task=ADD, args=[7])
    make_newer_jobs()
    with connection.cursor() as cursor:
        cursor.execute(statement.format(wanted()[0].name))
    assert listed(client, "?q=a=7") == []
    assert NOTE not in page_text(client, "?q=a=7")


def test_a_search_by_index_reads_no_other_index_and_not_the_whole_table() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO skipqueue_job (queue_name, task, args, kwargs, status)"
            " SELECT 'default', %s, jsonb_build_array(n), '{}', 'queued' FROM generate_series(1, 20000) AS n",
            [ADD],
        )
        for statistics in ("SELECT 1", "ANALYZE skipqueue_job"):
            cursor.execute(statistics)
            (index,) = wanted()
            with CaptureQueriesContext(connection) as queries:
                assert len(index.find(DEFAULT, "777", limit=100)) == 1
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {queries.captured_queries[-1]['sql']}")
            ((plan_json,),) = cursor.fetchall()
            plan_nodes = list(nodes(plan_json[0]["Plan"]))
            assert {node["Index Name"] for node in plan_nodes if "Index Name" in node} == {index.name}, plan_json
            assert not [node for node in plan_nodes if node["Node Type"] == "Seq Scan"], plan_json


def pay_by_card(amount: int, *rest: int, card: str = "", **more: Any) -> None:
    """A function that a test registers as a task."""


def test_masked_arguments_have_no_index(settings: Any, registry: Any) -> None:
    task_of(name="shop.pay", redact=["card"])(pay_by_card)
    settings.SKIPQUEUE = {**settings.SKIPQUEUE, "SEARCHABLE": {"shop.pay": ["amount", "card", "password", "other"]}}
    assert wanted() == [SearchIndex("shop.pay", "amount", 0), SearchIndex("shop.pay", "other", place=None)]
    first, second = problems()
    assert first.endswith("the values of 'card' are masked, and masked values cannot be searched.")
    assert "'password' are masked" in second


def test_an_index_finds_values_that_are_equal_in_json() -> None:
    jobs = [make_job(task=ADD, args=[value]) for value in (7, 7.0, "7", True, None)]
    (index,) = wanted()
    for value, found in ((7, jobs[:2]), ("7", jobs[2:3]), (True, jobs[3:4]), (None, jobs[4:])):
        assert sorted(index.find(DEFAULT, json.dumps(value), limit=10)) == [job.pk for job in found]
