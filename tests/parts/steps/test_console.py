"""What operators see of steps, and the form by which they send a signal."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db.models import F
from django.test import Client
from django.urls import reverse

from django_skipqueue import JobContext, job
from django_skipqueue.models import ArchivedJob, Dependency, Job, JobChild, JobSignal, JobStep
from django_skipqueue.parts.archive.move import make_partitions
from django_skipqueue.parts.steps import console
from django_skipqueue.parts.steps.console import CONSOLE, step_counts, untaken_signals
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs

pytestmark = pytest.mark.django_db

store = Store("default")


@job(name="console.child", max_attempts=1)
def child(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return number


@job(takes_context=True, name="console.parent")
def parent(context: JobContext) -> Any:
    context.step("account", lambda: {"number": 7, "password": "hunter2"})
    for _ in context.each("mails", [1, 2, 3]):
        pass
    context.sleep("nap", timedelta(hours=1))
    context.run_all("children", [child.s(1), child.s(2)])
    return context.wait("approved", timeout=timedelta(days=3))


def make_waiting_job() -> Job:
    waiting_job = parent.defer()
    run_jobs(until=timedelta(hours=2))
    waiting_job.refresh_from_db()
    assert waiting_job.status == "blocked", waiting_job.last_error
    return waiting_job


def page_of(client: Client, shown_job: Job) -> str:
    return client.get(reverse("admin:django_skipqueue_job_change", args=[shown_job.pk])).content.decode()


def test_the_page_of_a_job_shows_its_steps_and_what_it_waits_for(admin_client: Client) -> None:
    waiting_job = make_waiting_job()
    page = page_of(admin_client, waiting_job)
    for text in (
        "account",
        "mails",
        "nap",
        "children",
        "approved",
        "waits until",
        "It waits for the signal “approved”",
    ):
        assert text in page
    assert "hunter2" not in page
    for job_child in JobChild.objects.all():
        assert reverse("admin:django_skipqueue_job_change", args=[job_child.job_id]) in page
    assert "It is a child of" in page_of(admin_client, Job.objects.filter(task="console.child")[0])
    assert 'id="skipqueue-steps"' not in page_of(admin_client, child.defer(5))


def test_a_signal_is_sent_by_the_form(admin_client: Client) -> None:
    waiting_job = make_waiting_job()
    address = reverse("admin:django_skipqueue_job_signal", args=[waiting_job.pk])
    assert f"{address}?signal_name=approved" in page_of(admin_client, waiting_job)
    question_page = admin_client.get(address, {"signal_name": "approved"}).content.decode()
    assert 'value="approved"' in question_page
    answer = {"confirmed": "yes", "signal_name": "approved"}
    page_after_invalid_json = admin_client.post(address, {**answer, "payload": "{"}).content.decode()
    assert "Enter a valid JSON" in page_after_invalid_json
    assert "cannot be stored" in admin_client.post(address, {**answer, "payload": "NaN"}).content.decode()
    assert not JobSignal.objects.exists()
    page_after_signal = admin_client.post(
        address, {**answer, "payload": '{"by": "Ada"}', "reason": "by phone"}, follow=True
    )
    assert "was sent to job" in page_after_signal.content.decode()
    signal = JobSignal.objects.get()
    assert (signal.by, signal.reason) == ("admin", "by phone")
    page_after_second_signal = admin_client.post(address, {**answer, "payload": ""}, follow=True)
    assert "has already got a signal" in page_after_second_signal.content.decode()
    assert "by phone" in page_of(admin_client, waiting_job)
    run_jobs()
    waiting_job.refresh_from_db()
    assert waiting_job.result == {"by": "Ada"}
    page_after_late_signal = admin_client.post(address, {**answer, "payload": ""}, follow=True).content.decode()
    assert f"did nothing, because job {waiting_job.pk} is now completed." in page_after_late_signal
    assert "approved" in page_of(admin_client, waiting_job)


def test_a_job_without_steps_has_no_buttons_for_steps(admin_client: Client) -> None:
    page = page_of(admin_client, child.defer(5))
    for verb in ("signal", "retry-from", "run-again-from"):
        assert f"/{verb}/" not in page


def test_the_form_retries_a_job_from_a_step(admin_client: Client) -> None:
    failed_job = make_failed_job()
    address = reverse("admin:django_skipqueue_job_retry_from", args=[failed_job.pk])
    assert f"{address}?step=b" in page_of(admin_client, failed_job)
    assert 'value="b"' in admin_client.get(address, {"step": "b"}).content.decode()
    page_after_unknown_step = admin_client.post(
        address, {"confirmed": "yes", "step": "nothing", "over": "0"}, follow=True
    )
    assert f"Job {failed_job.pk} has no step “nothing”." in page_after_unknown_step.content.decode()
    answer = {"confirmed": "yes", "step": "b", "over": "0", "reason": "mended"}
    assert "is retried from the step “b”" in admin_client.post(address, answer, follow=True).content.decode()
    failed_job.refresh_from_db()
    operation = failed_job.operations[-1]
    assert (failed_job.status, operation["verb"], operation["reason"]) == ("queued", "retry", "from the step b: mended")
    assert list(JobStep.objects.values_list("name", flat=True)) == ["a"]
    assert [model.objects.count() for model in (JobSignal, JobChild, Dependency)] == [0, 0, 0]
    failed_job.signal("w", 2)
    run_jobs()
    failed_job.refresh_from_db()
    assert (failed_job.status, failed_job.result) == ("failed", None)
    assert steps_run == ["a", "b", "b"]


def test_the_form_runs_a_copy_of_a_job_from_a_step(admin_client: Client) -> None:
    failed_job = make_failed_job()
    address = reverse("admin:django_skipqueue_job_run_again_from", args=[failed_job.pk])
    assert f"{address}?step=w" in page_of(admin_client, failed_job)
    admin_client.post(address, {"confirmed": "yes", "step": "w", "reason": ""})
    copy = Job.objects.exclude(pk=failed_job.pk).get(task="console.ends_badly")
    assert set(JobStep.objects.filter(job_id=copy.pk).values_list("name", flat=True)) == {"a", "b"}
    copy.signal("w", 2)
    run_jobs()
    assert steps_run == ["a", "b"]
    failed_job.refresh_from_db()
    assert failed_job.status == "failed"
    assert JobStep.objects.filter(job_id=failed_job.pk).count() == 4


def test_an_action_of_the_list_sends_a_signal_to_the_selected_jobs(admin_client: Client) -> None:
    first, second, job_without_steps = make_waiting_job(), make_waiting_job(), child.defer(5)
    address = reverse("admin:django_skipqueue_job_changelist")
    selection = {
        "action": "signal_selected",
        "_selected_action": [first.pk, second.pk, job_without_steps.pk],
        "confirmed": "yes",
    }
    answer = {"signal_name": "approved", "payload": '"yes"', "reason": ""}
    assert "3 jobs got the signal" in admin_client.post(address, {**selection, **answer}, follow=True).content.decode()
    run_jobs()
    assert list(Job.objects.filter(task="console.parent").values_list("result", flat=True)) == ["yes", "yes"]


def test_query_sets_and_jobs_retry_and_run_again_from_a_step() -> None:
    failed_job = make_failed_job()
    assert not failed_job.retry_from("nothing")
    assert failed_job.run_again_from("nothing") is None
    job_without_steps = child.defer(-1)
    run_jobs()
    assert Job.objects.filter(pk__in=[failed_job.pk, job_without_steps.pk]).run_again_from("w") == 1
    copy = Job.objects.filter(task="console.ends_badly").latest("pk")
    assert copy.operations[-1]["job"] == failed_job.pk
    assert Job.objects.filter(pk__in=[failed_job.pk, job_without_steps.pk]).retry_from("w") == 1
    failed_job.refresh_from_db()
    assert failed_job.status == "queued"
    assert set(JobStep.objects.filter(job_id=failed_job.pk).values_list("name", flat=True)) == {"a", "b"}
    second_copy = copy.run_again_from("b")
    assert second_copy is None, "the copy is not finished"
    assert failed_job.retry_from("a") is False, "the job is queued"
    assert JobStep.objects.filter(job_id=failed_job.pk).count() == 2


def test_a_job_that_cannot_be_retried_keeps_its_steps() -> None:
    failed_job = make_failed_job()
    Job.objects.filter(pk=failed_job.pk).update(unique_key="k", unique_seconds=None)
    holder = child.using(unique_key="k").defer(1)
    retried_job = ends_badly.defer()
    retried_job.signal("w", 1)
    run_jobs()
    Job.objects.filter(pk=holder.pk).update(status="scheduled", finished_at=None)
    assert Job.objects.filter(pk__in=[failed_job.pk, retried_job.pk]).retry_from("b") == 1
    assert list(Job.objects.filter(status="queued").values_list("pk", flat=True)) == [retried_job.pk]
    assert JobStep.objects.filter(job_id=failed_job.pk).count() == 4
    assert JobStep.objects.filter(job_id=retried_job.pk).count() == 1


steps_run: list[str] = []


@job(takes_context=True, name="console.ends_badly", max_attempts=1)
def ends_badly(context: JobContext) -> None:
    context.step("a", steps_run.append, "a")
    context.step("b", steps_run.append, "b")
    context.wait("w")
    context.run("c", child.s(1))
    raise ValueError


def make_failed_job() -> Job:
    steps_run.clear()
    failed_job = ends_badly.defer()
    failed_job.signal("w", 1)
    run_jobs()
    failed_job.refresh_from_db()
    assert failed_job.status == "failed"
    return failed_job


@pytest.mark.django_db(transaction=True)
def test_the_command_signals_retries_and_runs_again_from_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    failed_job = make_failed_job()
    call_command("skipqueue", "run-again-from", str(failed_job.pk), "--step", "w")
    assert "1 job run again from a step" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        call_command("skipqueue", "retry-from", str(failed_job.pk), "--step", "nothing")
    assert "1 that has no such step" in capsys.readouterr().err
    call_command("skipqueue", "retry-from", str(failed_job.pk), "--step", "b")
    assert "1 job retried from a step" in capsys.readouterr().err
    call_command(
        "skipqueue", "signal", str(failed_job.pk), "--name", "w", "--payload", '{"a": 1}', "--reason", "by phone"
    )
    assert "1 job signalled" in capsys.readouterr().err
    signal = JobSignal.objects.get(job_id=failed_job.pk)
    assert (signal.payload, signal.reason) == ({"a": 1}, "by phone")
    with pytest.raises(SystemExit):
        call_command("skipqueue", "signal", str(failed_job.pk), "--name", "w")
    assert "1 that got a signal of this name before" in capsys.readouterr().err
    with pytest.raises(CommandError, match="is no JSON"):
        call_command("skipqueue", "signal", str(failed_job.pk), "--name", "w", "--payload", "{")
    with pytest.raises(CommandError, match="--name"):
        call_command("skipqueue", "signal", str(failed_job.pk))


def test_sending_a_signal_needs_its_permission(client: Client, django_user_model: type[User]) -> None:
    waiting_job = make_waiting_job()
    user = django_user_model.objects.create_user("viewer", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_job"))
    client.force_login(user)
    address = reverse("admin:django_skipqueue_job_signal", args=[waiting_job.pk])
    assert address not in page_of(client, waiting_job)
    assert client.post(address, {"confirmed": "yes", "signal_name": "approved"}).status_code == 403
    assert not JobSignal.objects.exists()
    user.user_permissions.add(Permission.objects.get(codename="signal_job"))
    assert client.post(address, {"confirmed": "yes", "signal_name": "approved", "payload": ""}).status_code == 302
    assert JobSignal.objects.exists()


def test_the_list_filters_jobs_that_wait_for_a_signal(admin_client: Client) -> None:
    waiting_job, job_without_steps = make_waiting_job(), child.defer(5)
    page = admin_client.get(reverse("admin:django_skipqueue_job_changelist"), {"signal": "waits"}).content.decode()
    assert reverse("admin:django_skipqueue_job_change", args=[waiting_job.pk]) in page
    assert reverse("admin:django_skipqueue_job_change", args=[job_without_steps.pk]) not in page


def test_the_dashboard_counts_waiting_and_sleeping_jobs(admin_client: Client) -> None:
    address = reverse("admin:django_skipqueue_job_dashboard")
    assert "Between two steps" not in admin_client.get(address).content.decode()
    make_waiting_job()
    assert "Between two steps" in admin_client.get(address).content.decode()


def test_cancelled_jobs_do_not_count_as_waiting_or_sleeping() -> None:
    make_waiting_job()
    parent.defer()
    run_jobs()
    assert Job.objects.unfinished().cancel() == 2
    counts = step_counts(store)
    assert (counts.waiting, counts.sleeping) == (0, 0)


def test_waiting_jobs_untaken_signals_and_sleeping_jobs_are_counted() -> None:
    make_waiting_job().signal("other")
    parent.defer()
    run_jobs()
    counts = step_counts(store)
    assert (counts.waiting, counts.untaken, counts.sleeping) == (1, 1, 1)


def test_a_signal_that_nobody_has_taken_for_a_day_is_a_finding() -> None:
    waiting_job = make_waiting_job()
    waiting_job.signal("aproved")  # a misspelled name, for which no job waits
    assert not list(untaken_signals(store))
    JobSignal.objects.update(sent_at=F("sent_at") - timedelta(days=2))
    [finding] = untaken_signals(store)
    assert "aproved" in finding.found
    assert str(waiting_job.pk) in finding.command
    waiting_job.cancel()
    assert not list(untaken_signals(store))


@pytest.mark.django_db(transaction=True)
def test_skipqueue_show_prints_the_steps_of_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    waiting_job = make_waiting_job()
    call_command("skipqueue", "show", str(waiting_job.pk), "--json")
    job_as_json = json.loads(capsys.readouterr().out)
    assert [step["name"] for step in job_as_json["steps"]] == ["account", "mails", "nap", "children", "approved"]
    assert "hunter2" not in json.dumps(job_as_json)
    assert [child_as_json["status"] for child_as_json in job_as_json["children"]] == ["completed", "completed"]
    call_command("skipqueue", "show", str(waiting_job.pk))
    output = capsys.readouterr().out
    assert "step account: done" in output
    assert "wait approved: waits until" in output
    call_command("skipqueue", "status")
    assert "Jobs that wait for signals: 1" in capsys.readouterr().out


@pytest.mark.django_db(transaction=True)
def test_only_the_last_of_many_steps_are_listed(
    admin_client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "MOST_RECORDS_LISTED", 3)
    waiting_job = make_waiting_job()
    page = page_of(admin_client, waiting_job)
    assert "waits until" in page, "where the job is now"
    assert "The first 2 steps are not listed." in page
    call_command("skipqueue", "show", str(waiting_job.pk))
    output = capsys.readouterr().out
    assert "steps before these: 2" in output
    assert "step account" not in output


def test_the_records_of_a_deleted_job_are_deleted() -> None:
    waiting_job = make_waiting_job()
    waiting_job.signal("other")
    assert CONSOLE.on_delete is not None
    CONSOLE.on_delete([waiting_job.pk], "default")
    assert [model.objects.count() for model in (JobStep, JobSignal, JobChild)] == [0, 0, 0]


def test_the_archive_keeps_the_steps_of_a_job(admin_client: Client, settings: Any) -> None:
    settings.SKIPQUEUE = {"ARCHIVE": None}
    waiting_job = make_waiting_job()
    waiting_job.signal("approved", {"by": "Ada"})
    waiting_job.signal("other")
    run_jobs()
    Job.objects.update(finished_at=F("finished_at") - timedelta(days=400))
    make_partitions(store)
    assert sum(store.prune().values()) == 3, "two children, and their parent"
    assert [model.objects.count() for model in (Job, JobStep, JobSignal, JobChild)] == [0, 0, 0, 0]
    assert set(ArchivedJob.objects.filter(task="console.child").values_list("records", flat=True)) == {None}
    archived = ArchivedJob.objects.get(task="console.parent")
    page = admin_client.get(reverse("admin:django_skipqueue_archivedjob_change", args=[archived.pk]))
    html = page.content.decode()
    for part in ("account", "mails", "nap", "children", "approved", "Ada", "deleted"):
        assert part in html
    assert "hunter2" not in html
    assert "Retry from here" not in html
    assert "Run again from here" not in html


@job(takes_context=True, name="console.grandparent")
def grandparent(context: JobContext) -> Any:
    return context.run("parent", only_parent.s())


@job(takes_context=True, name="console.only_parent")
def only_parent(context: JobContext) -> Any:
    return context.run_all("children", [child.s(1), child.s(2)])


@pytest.mark.django_db(transaction=True)
def test_the_children_of_children_are_shown(admin_client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    grandparent_job = grandparent.defer()
    run_jobs()
    call_command("skipqueue", "show", str(grandparent_job.pk), "--json")
    [parent_of_two] = json.loads(capsys.readouterr().out)["children"]
    assert [job_child["status"] for job_child in (parent_of_two, *parent_of_two["children"])] == ["completed"] * 3
    page = page_of(admin_client, grandparent_job)
    for job_child in Job.objects.exclude(pk=grandparent_job.pk):
        assert reverse("admin:django_skipqueue_job_change", args=[job_child.pk]) in page
    call_command("skipqueue", "show", str(grandparent_job.pk))
    assert f"  child of children: job {parent_of_two['children'][0]['job_id']}, completed" in capsys.readouterr().out


@job(takes_context=True, name="console.fails", max_attempts=3)
def fails(context: JobContext, seen: int) -> None:
    for number in range(2):  # before each of the two steps, an attempt fails
        if Job.objects.get(pk=context.job_id).errors[-1:] == [] or len(context.job.errors) <= number:
            raise ValueError(number)
        context.step(f"step {number}", child.function, 1)


def test_the_timeline_numbers_attempts_across_resets_of_their_count(admin_client: Client) -> None:
    deferred_job = fails.defer(0)
    run_jobs(include_scheduled=True)
    deferred_job.refresh_from_db()
    assert deferred_job.status == "completed", deferred_job.last_error
    page = page_of(admin_client, deferred_job)
    for number in (1, 2, 3):
        assert f"attempt {number} " in page


def test_the_page_of_a_job_says_that_its_child_did_not_complete(admin_client: Client) -> None:
    deferred_job = failing.defer()
    run_jobs()
    deferred_job.refresh_from_db()
    assert deferred_job.status == "failed"
    assert "did not complete" in page_of(admin_client, deferred_job)


@job(takes_context=True, name="console.failing")
def failing(context: JobContext) -> None:
    context.run("one", child.s(-1))
