"""`console.verbs.table`: every verb has the texts and permissions that the admin needs, and changes the right jobs."""

from collections.abc import Callable
from datetime import timedelta
from inspect import signature
from itertools import product
from typing import Any

import pytest
from django.contrib.auth.models import Permission

from django_skipqueue.console.verbs.table import DELETE, RUN_AGAIN
from django_skipqueue.console.verbs.verb import Instruction
from django_skipqueue.models import Job
from django_skipqueue.models.managers import JobQuerySet
from django_skipqueue.queue.store import Store

from ....app.rows import STATUSES, make_job, make_worker
from ....app.sessions import Session
from ....app.verbs import BUTTONS, VERBS
from ....harness.table import Case

pytestmark = pytest.mark.django_db

DELAY = timedelta(minutes=90)
INSTRUCTION = Instruction(
    "ann", "why", {"over": DELAY, "delay": DELAY, "run_after": DELAY, "queue_name": "mail", "priority": 7}
)
VALUES = {"id": 1, "copy": 2, "queue": "q", "run_after": "now", "queue_name": "mail", "priority": 7}


def test_each_verb_has_its_own_name() -> None:
    names = [verb.name for verb in VERBS]
    assert sorted(set(names)) == sorted(names)


class TestEach:
    def test_each_verb_is_a_method_of_jobs_and_of_query_sets(self, case: Case) -> None:
        for verb in VERBS:
            with case(verb.name):
                options = {option.parameter or option.name for option in verb.options}
                noted = {"by", "reason"} if verb.leaves_rows else set()
                for owner in (Job, JobQuerySet) if verb is not DELETE else (JobQuerySet,):
                    assert {*signature(getattr(owner, verb.name)).parameters} == {"self", *options, *noted}

    def test_the_permission_of_each_verb_exists(self) -> None:
        permissions = Permission.objects.filter(content_type__app_label="django_skipqueue")
        assert {f"{verb.permission}_job" for verb in VERBS} <= set(permissions.values_list("codename", flat=True))

    def test_each_verb_changes_only_jobs_in_its_statuses(self, case: Case) -> None:
        for verb, status in product(VERBS, STATUSES):
            with case(verb=verb.name, status=status):
                job = make_job(status)
                changed = verb.apply([job.pk], INSTRUCTION)
                assert set(changed) == ({job.pk} if status in verb.statuses else set())

    def test_no_verb_is_offered_for_a_status_in_which_it_does_nothing(self, case: Case) -> None:
        for verb in VERBS:
            with case(verb.name):
                assert {status for status in STATUSES if verb.is_offered_for(status)} <= set(verb.statuses)

    def test_the_log_entry_of_each_verb_can_be_formatted(self, case: Case) -> None:
        for verb in VERBS:
            with case(verb.name):
                assert "%" not in str(verb.log_entry) % VALUES
                assert "%" not in str(verb.log_entry_of_copy) % VALUES


def test_the_texts_of_each_button_can_be_formatted(case: Case) -> None:
    for verb, button in BUTTONS:
        with case(verb.name):
            for text in (button.label, button.hint, button.question_title, button.done):
                assert "%" not in str(text) % VALUES


class TestActions:
    def test_the_texts_of_each_action_can_be_formatted(self, case: Case) -> None:
        for verb in VERBS:
            action = verb.action
            with case(verb.name):
                for count in (1, 2):
                    values = {"number": count, "count": count}
                    for text in (action.question_title, action.done):
                        assert "%" not in str(text % values)

    def test_an_action_on_twenty_jobs_needs_few_statements(
        self, case: Case, django_assert_max_num_queries: Any
    ) -> None:
        for verb in VERBS:
            with case(verb.name):
                jobs = [make_job("failed").pk for _ in range(20)]
                with django_assert_max_num_queries(6):
                    verb.apply(jobs, INSTRUCTION)


def test_every_operation_that_the_store_writes_has_a_verb() -> None:
    job = make_job("queued")
    store = Store.default()
    for change in (store.discard, store.retry, store.cancel):
        change([job.pk])
    store.retry([job.pk], over=60)
    store.run_now([job.pk])
    store.postpone([job.pk], DELAY)
    store.reschedule([job.pk], DELAY)
    store.change_queue([job.pk], "mail")
    store.change_priority([job.pk], 7)
    store.cancel([job.pk])
    [copy] = RUN_AGAIN.apply([job.pk], INSTRUCTION).values()
    changed_jobs = Job.objects.filter(pk__in=[job.pk, copy])
    written_verbs = {entry["verb"] for changed_job in changed_jobs for entry in changed_job.operations or []}
    assert written_verbs == {verb.name for verb in VERBS if verb.leaves_rows}


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_being_claimed_is_not_deleted(session: Callable[[], Session]) -> None:
    claimed_job, waiting_job = make_job("queued", priority=1), make_job("queued")
    make_worker()
    claiming_session = session()
    claiming_session.begin()
    claiming_session(lambda: Job.objects.claim(queue_names=["default"], limit=1, worker_id="w"))
    assert set(DELETE.apply([claimed_job.pk, waiting_job.pk], INSTRUCTION)) == {waiting_job.pk}
    claiming_session.commit()
    assert dict(Job.objects.values_list("pk", "status")) == {claimed_job.pk: "running"}
