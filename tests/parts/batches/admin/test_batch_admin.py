"""Batches in the admin: the list, the page of a batch, the links of jobs, and the effect of the buttons."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse

from django_skipqueue import Batch
from django_skipqueue.models import Job, JobBatch
from django_skipqueue.parts.batches import admin as batch_admin
from django_skipqueue.parts.batches import console as batch_states
from django_skipqueue.parts.batches.finish import finish_open_batches
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs

from ....app import jobs
from ....app.rows import make_job
from ....console.admin.conftest import LIST, listed, messages_of
from ....console.admin.conftest import page as job_page

pytestmark = pytest.mark.django_db

BATCHES = "/admin/django_skipqueue/jobbatch/"
FORM = re.compile(r'<form method="post" action="([^"]+)"[^>]*>(.*?)</form>', re.DOTALL)
FIELD = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')


def batch_address(batch: Batch | int) -> str:
    return f"{BATCHES}{batch if isinstance(batch, int) else batch.id}/change/"


def make_batch(name: str = "receipts", number: int = 3, **callbacks: Any) -> Batch:
    with Batch(name=name, **callbacks) as batch:
        jobs.add.defer_many([(argument,) for argument in range(number)])
    return batch


def batch_buttons(client: Client, batch: Batch) -> dict[str, tuple[str, dict[str, str]]]:
    """The buttons on the page of a batch: by the label of each, the address and the fields of its form."""
    buttons = {}
    for address, form_html in FORM.findall(client.get(batch_address(batch)).text):
        label = re.search(r'aria-label="([^"]+)"', form_html)
        if label:
            buttons[label[1]] = address.replace("&amp;", "&"), dict(FIELD.findall(form_html))
    return buttons


# The list


def test_a_row_shows_the_progress_and_the_job_counts_of_a_batch(operator: Client) -> None:
    batch = make_batch()
    first, second, _ = batch.jobs.order_by("pk")
    Job.objects.filter(pk=first.pk).update(status="completed", finished_at=first.enqueued_at)
    Job.objects.filter(pk=second.pk).update(status="failed", finished_at=first.enqueued_at)
    html = operator.get(BATCHES).text
    assert batch_address(batch) in html
    assert "2/3" in html
    assert 'value="0.6667"' in html
    for expected in (">running</span>", "queued: <strong>1", "failed: <strong>1", "completed: <strong>1"):
        assert expected in html


def test_the_progress_bar_of_a_batch_with_failures_has_the_status_failed(operator: Client) -> None:
    batch = make_batch()
    assert 'value="0.0000" data-status="running"' in operator.get(BATCHES).text
    batch.jobs.update(status="failed", finished_at=Now())
    JobBatch.objects.update(finished_at=Now(), failed=3)
    assert 'value="1.0000" data-status="failed"' in operator.get(BATCHES).text


def test_the_filter_shows_the_batches_of_a_state(operator: Client) -> None:
    running, failed = make_batch("runs"), make_batch("broken", number=0)
    JobBatch.objects.filter(pk=failed.id).update(failed=1)
    make_batch("good", number=0)
    for state, names in (("running", ["runs"]), ("failures", ["broken"]), ("finished", ["broken", "good"])):
        html = operator.get(f"{BATCHES}?state={state}").text
        assert [name for name in ("broken", "good", "runs") if f">{name}</a>" in html] == names
    assert running.row.finished_at is None


def test_inner_batches_name_the_outer_batch_and_can_be_listed(operator: Client) -> None:
    with Batch(name="outer") as outer, Batch(name="inner"):
        jobs.noop.defer()
    make_batch("another")
    html = operator.get(f"{BATCHES}?inside={outer.id}").text
    assert ">inner</a>" in html
    assert ">another</a>" not in html
    assert f'<a href="{batch_address(outer)}">#{outer.id}</a>' in html
    assert ">inner</a>" in operator.get(batch_address(outer)).text


@pytest.mark.parametrize("query", ["q=ceip", "q=%23{id}", "q={id}"])
def test_the_search_finds_a_name_and_an_id(operator: Client, query: str) -> None:
    batch = make_batch()
    make_batch("other")
    html = operator.get(f"{BATCHES}?{query.format(id=batch.id)}").text
    assert ">receipts</a>" in html
    assert ">other</a>" not in html


@pytest.mark.parametrize(
    "query", ["q=%00", "state=x", "inside=x", "inside=99999999999999999999", "p=x", "q=99999999999999999999"]
)
def test_an_invalid_query_in_the_address_is_no_error(operator: Client, query: str) -> None:
    make_batch()
    assert operator.get(f"{BATCHES}?{query}", follow=True).status_code == 200


def test_an_empty_list_of_batches_says_so(operator: Client) -> None:
    assert "There are no batches." in operator.get(BATCHES).text
    make_batch()
    assert "No match." in operator.get(f"{BATCHES}?q=nothing").text


def test_the_list_of_batches_needs_few_queries(operator: Client, django_assert_max_num_queries: Any) -> None:
    for number in range(30):
        make_batch(f"b{number}", number=2)
    operator.get(BATCHES)
    with django_assert_max_num_queries(14):
        html = operator.get(BATCHES).text
    assert html.count("skipqueue-progress") == 25
    assert "?p=2" in html


def test_jobs_are_counted_up_to_a_limit(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch(number=20)
    monkeypatch.setattr(batch_states, "MOST_JOBS_COUNTED", 5)
    monkeypatch.setattr(batch_states, "MOST_JOBS_OF_BATCH", 10)
    html = operator.get(BATCHES).text
    assert "0/10+" in html
    assert "<progress" not in html
    monkeypatch.setattr(batch_states, "COUNT_SECONDS", -1)
    assert "0/5+" in operator.get(batch_address(batch)).text


# The page of a batch


def test_each_callback_links_to_the_job_that_was_enqueued_for_it(operator: Client) -> None:
    """The links are right even if callbacks with a unique key were enqueued last, or were skipped."""
    with_free_key, with_taken_key = jobs.echo.using(unique_key="free").s(1), jobs.noop.using(unique_key="taken").s()
    batch = make_batch(on_success=with_free_key, on_failure=jobs.fail.s(), on_finish=jobs.add.s(1))
    assert operator.get(batch_address(batch)).text.count("waits for the end of the batch") == 3
    run_jobs()
    callback_ids = {
        job.task.rpartition(".")[2]: job.pk for job in Job.objects.filter(pk__in=batch.row.callback_ids or ())
    }
    states = {callback.name: (callback.job_id, callback.state) for callback in batch_states.callbacks_of(batch.row)}
    assert states == {
        "on_success": (callback_ids["echo"], "completed"),
        "on_failure": (None, "not called"),
        "on_finish": (callback_ids["add"], "completed"),
    }
    html = operator.get(batch_address(batch)).text
    assert f'<a href="{job_page("change", callback_ids["echo"])}">#{callback_ids["echo"]}</a>' in html
    Job.objects.filter(pk=callback_ids["echo"]).delete()
    assert "job deleted or pruned" in operator.get(batch_address(batch)).text
    make_job("queued", unique_key="taken")
    skipped = make_batch(on_success=with_taken_key)
    Job.objects.filter(batch_id=skipped.id).update(status="completed", finished_at=batch.row.created_at)
    finish_open_batches(Store("default"))
    assert batch_states.callbacks_of(skipped.row)[0].state == "skipped"
    assert "another job held its unique key" in operator.get(batch_address(skipped)).text


def test_the_graph_has_a_link_for_each_job_and_an_edge_for_each_need(operator: Client) -> None:
    with Batch(on_finish=jobs.noop) as batch:
        first = jobs.add.defer(1)
        second = jobs.add.using(after=[first]).defer(2)
    html = operator.get(batch_address(batch)).text
    for job, status in ((first, "queued"), (second, "blocked")):
        assert f'<a href="{job_page("change", job.pk)}" aria-label="tests.app.jobs.add: #{job.pk}, {status}">' in html
    assert html.count('class="skipqueue-edge"') == 2
    assert 'aria-label="tests.app.jobs.noop: on finish, waits"' in html
    assert f"<td>add (#{first.pk}, queued)</td>" in html


def test_the_graph_of_a_large_batch_groups_its_jobs_and_reads_the_newest(
    operator: Client, monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: Any
) -> None:
    monkeypatch.setattr(batch_admin, "MOST_JOBS_OF_STATUS", 50)
    batch = make_batch(number=60)
    operator.get(batch_address(batch))
    with django_assert_max_num_queries(32):
        html = operator.get(batch_address(batch)).text
    assert "tests.app.jobs.add: 50+ \N{MULTIPLICATION SIGN} queued" in html
    assert "the newest 50 jobs are shown" in html
    assert f"{LIST}?batch={batch.id}&amp;status=queued&amp;task=tests.app.jobs.add" in html


def test_the_page_of_a_missing_batch_redirects_to_the_list(operator: Client) -> None:
    for id in ("5", "x", "99999999999999999999"):
        response = operator.get(f"{BATCHES}{id}/change/", follow=True)
        assert messages_of(response) == [f"There is no batch {id}. It may have been pruned."]


def test_the_page_of_a_batch_says_how_many_jobs_were_pruned(operator: Client) -> None:
    batch = make_batch()
    run_jobs()
    assert "pruned." not in operator.get(batch_address(batch)).text
    batch.jobs.order_by("pk")[:1].get().delete()
    assert "1 more job was pruned." in operator.get(batch_address(batch)).text


# The buttons


def test_the_buttons_retry_the_failed_jobs_and_discard_the_waiting_jobs(operator: Client) -> None:
    batch, other_batch = make_batch(), make_batch("other")
    Job.objects.filter(pk=batch.jobs.order_by("pk")[0].pk).update(status="failed", finished_at=batch.row.created_at)
    Job.objects.filter(pk=other_batch.jobs.order_by("pk")[0].pk).update(
        status="failed", finished_at=batch.row.created_at
    )
    buttons = batch_buttons(operator, batch)
    assert sorted(buttons) == ["Discard these jobs: queued", "Retry these jobs: failed"]
    questions = {"Retry these jobs: failed": "Retry 1 job?", "Discard these jobs: queued": "Discard 3 jobs?"}
    for label, question in questions.items():
        address, fields = batch_buttons(operator, batch)[label]
        question_page = operator.post(address, fields)
        assert question in question_page.text
        operator.post(address, fields | {"confirmed": "yes", "answered": "1", "post": "yes", "reason": ""})
    assert set(other_batch.jobs.values_list("status", flat=True)) == {"failed", "queued"}


def test_a_user_without_permission_to_retry_sees_no_button(log_in: Callable[..., Client]) -> None:
    batch = make_batch()
    client = log_in("view_jobbatch", "view_job", "retry_job")
    assert batch_buttons(client, batch) == {}
    Job.objects.update(status="failed", finished_at=batch.row.created_at)
    assert list(batch_buttons(client, batch)) == ["Retry these jobs: failed"]


# The jobs


def test_the_list_of_jobs_shows_the_jobs_of_a_batch(operator: Client) -> None:
    other_batch, batch = make_batch("other"), make_batch()
    ids = sorted(batch.jobs.values_list("pk", flat=True), reverse=True)
    assert listed(operator, f"?batch={batch.id}") == ids
    assert listed(operator, f"?batch={batch.id}&status=queued") == ids
    assert listed(operator, f"?batch={batch.id}&status=scheduled") == []
    assert listed(operator, f"?batch={batch.id}&task=tests.app.jobs.noop") == []
    assert listed(operator, f"?batch={batch.id}&q=a%3D2") == [ids[0]]
    assert set(listed(operator, "?batch=x")) >= set(other_batch.jobs.values_list("pk", flat=True))
    tabs = {tab.state: tab.count for tab in operator.get(f"{LIST}?batch={batch.id}").context["cl"].tabs}
    assert (str(tabs["queued"]), str(tabs["failed"]), tabs["retrying"]) == ("3", "0", None)


def test_the_page_of_a_job_links_to_its_batch_and_to_the_jobs_for_which_it_waits(log_in: Callable[..., Client]) -> None:
    with Batch(name="receipts") as batch:
        first = jobs.add.defer(1)
        second = jobs.add.using(after=[first]).defer(2)
    client = log_in("view_job", "view_jobbatch")
    html = client.get(job_page("change", second.pk)).text
    assert f'<a href="{batch_address(batch)}">receipts #{batch.id}</a>' in html
    assert f'<a href="{job_page("change", first.pk)}">#{first.pk}</a>' in html
    assert reverse("admin:django_skipqueue_jobbatch_change", args=[batch.id]) == batch_address(batch)
