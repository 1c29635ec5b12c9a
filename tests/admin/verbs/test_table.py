"""`table`: every verb says all that the admin needs of it, and changes the jobs that it should."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from django.contrib.auth.models import Permission

from django_skipqueue.console.admin.verbs.table import ACTIONS, BUTTONS, DELETE, PAST, VERBS
from django_skipqueue.console.admin.verbs.verb import Instruction
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store

from ...app.rows import STATUSES, make_job, make_worker
from ...app.sessions import Session
from ...harness.table import Row

pytestmark = pytest.mark.django_db

INSTRUCTION = Instruction("ann", "why", 90, queue_name="mail", priority=7)
VALUES = {"id": 1, "copy": 2, "queue": "q", "time": "now", "new_queue": "mail", "priority": 7}


def test_each_has_a_name_of_its_own() -> None:
    names = [verb.name for verb in VERBS]
    assert sorted(set(names)) == sorted(names)


class TestEach:
    def test_it_stands_on_a_page_or_a_list(self) -> None:
        assert [verb.name for verb in VERBS if not (verb.button or verb.action)] == []

    def test_its_permission_exists(self) -> None:
        permissions = Permission.objects.filter(content_type__app_label="django_skipqueue")
        assert {f"{verb.permission}_job" for verb in VERBS} <= set(permissions.values_list("codename", flat=True))

    def test_it_changes_jobs_in_its_statuses_and_no_others(self, row: Row) -> None:
        for verb, status in product(VERBS, STATUSES):
            with row(verb=verb.name, status=status):
                job = make_job(status)
                changed = verb.change([job.pk], INSTRUCTION)
                assert set(changed) == ({job.pk} if status in verb.statuses else set())

    def test_it_is_offered_for_no_status_in_which_it_does_nothing(self, row: Row) -> None:
        for verb in VERBS:
            with row(verb.name):
                assert {status for status in STATUSES if verb.is_offered_for(status)} <= set(verb.statuses)

    def test_its_log_entry_takes_the_values(self, row: Row) -> None:
        for verb in VERBS:
            with row(verb.name):
                assert "%" not in str(verb.log_entry) % VALUES
                assert "%" not in str(verb.log_entry_of_copy) % VALUES


def test_the_texts_of_a_button_take_its_values(row: Row) -> None:
    for verb, button in BUTTONS:
        with row(verb.name):
            for text in (button.label, button.hint, button.question_title, button.done):
                assert "%" not in str(text) % VALUES


class TestActions:
    def test_their_texts_take_the_numbers(self, row: Row) -> None:
        for name, (_, action) in ACTIONS.items():
            with row(name):
                for count in (1, 2):
                    values = {"number": count, "count": count, "some": 1}
                    for text in (action.question_title, action.refusal, action.done):
                        assert "%" not in str(text % values)
                    assert "%" not in str(action.question_title_partial) % values

    def test_their_log_entry_is_the_same_for_all_jobs(self) -> None:
        assert [name for name, (verb, _) in ACTIONS.items() if "%" in str(verb.log_entry)] == []

    def test_a_batch_is_a_few_statements_however_many_jobs(self, row: Row, django_assert_max_num_queries: Any) -> None:
        for name, (verb, _) in ACTIONS.items():
            with row(name):
                jobs = [make_job("failed").pk for _ in range(20)]
                with django_assert_max_num_queries(5):
                    verb.change(jobs, INSTRUCTION)


def test_the_history_has_all_that_the_store_notes_in_a_row() -> None:
    job = make_job("queued")
    store = Store.default()
    for change in (store.discard, store.retry, store.cancel):
        change([job.pk])
    store.retry([job.pk], over=60)
    store.run_now([job.pk])
    store.postpone([job.pk], INSTRUCTION.delay)
    store.reschedule([job.pk], INSTRUCTION.delay)
    store.change_queue([job.pk], "mail")
    store.change_priority([job.pk], 7)
    noted = {entry["verb"] for entry in Job.objects.get(pk=job.pk).operations or []}
    assert noted == set(PAST) == {
        "discard", "retry", "cancel", "run_now", "postpone", "reschedule", "change_queue", "change_priority"
    }  # fmt: skip


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_claimed_while_it_is_to_be_deleted_is_left_alone(session: Callable[[], Session]) -> None:
    job, waiting = make_job("queued", priority=1), make_job("queued")
    make_worker()
    other = session()
    other.begin()
    other(lambda: Job.objects.claim(queue_names=["default"], limit=1, worker_id="w"))
    assert set(DELETE.change([job.pk, waiting.pk], INSTRUCTION)) == {waiting.pk}
    other.commit()
    assert dict(Job.objects.values_list("pk", "status")) == {job.pk: "running"}
