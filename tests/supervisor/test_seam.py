"""A part gives functions and objects to the core and the console. These tests define their own parts."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.core.checks.registry import registry
from django.dispatch import Signal
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_skipqueue.checks import register_all
from django_skipqueue.console.admin.dashboard import CARDS, SECTIONS, Card, Dashboard, sections
from django_skipqueue.console.admin.jobs.filters import GroupFilter
from django_skipqueue.console.admin.jobs.page import JobPage
from django_skipqueue.console.metrics.catalogue import queues
from django_skipqueue.console.parts import PartCard, PartConsole, PartFact, PartNotice, PartPage, PartSection
from django_skipqueue.console.queues_and_workers import QueueRate, queue_states
from django_skipqueue.console.rules.verdict import Verdict
from django_skipqueue.console.verbs.table import delete_jobs
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import PruneJobs, Pruner, watches
from django_skipqueue.testing import run_jobs
from django_skipqueue.values import part as parts
from django_skipqueue.values.part import Part, install_parts
from django_skipqueue.worker.dispatcher import settle_services

from ..app import jobs
from ..app.rows import make_job
from ..console.admin.conftest import listed, log_in, operator, page
from ..console.cli.running import skipqueue
from ..management.test_prunejobs import prunejobs

__all__ = ["log_in", "operator"]

pytestmark = [pytest.mark.core, pytest.mark.django_db(transaction=True)]

LONG_AGO = timedelta(days=-100)


@pytest.fixture(autouse=True)
def install_part(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs one part in place of all others."""
    reverse("admin:index")  # Django reads the URLs once: without this, it might read them while no part is installed
    monkeypatch.setattr(parts, "parts_by_name", {})

    def make(**part_fields: Any) -> None:
        install_parts([Part(name="mail", **part_fields)])

    return make


def test_a_part_may_prune_jobs_itself_or_leave_them_to_the_core(install_part: Callable[..., None]) -> None:
    created_ids = [make_job("completed", finished_at=LONG_AGO).pk for _ in range(2)]
    prune_calls: list[Any] = []
    result_of_part: dict[str, int] | None = {"completed": 7}

    def on_prune(store: Store, ids: list[int]) -> dict[str, int] | None:
        prune_calls.append((store.alias, sorted(ids)))
        return result_of_part

    install_part(on_prune=on_prune)
    assert Store("default").prune() == {"completed": 7}
    assert Job.objects.count() == 2
    result_of_part = None
    assert Store("default").prune() == {"completed": 2}
    assert not Job.objects.exists()
    assert prune_calls == [("default", created_ids)] * 2


def test_a_part_is_called_before_each_batch_of_pruning(install_part: Callable[..., None]) -> None:
    aliases_called: list[str] = []
    install_part(before_prune=lambda store: lambda: aliases_called.append(store.alias))
    pruner = Pruner(Store("default"))
    assert aliases_called == []
    pruner.batch()
    pruner.batch()
    assert aliases_called == ["default"] * 2


def test_a_supervisor_keeps_jobs_for_the_grace_of_a_part(install_part: Callable[..., None], settings: Any) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
    make_job("completed", finished_at=timedelta(seconds=-10))
    install_part(prune_grace=60.0)
    PruneJobs(Store("default")).run(0.0)
    assert Job.objects.exists()
    install_part(prune_grace=5.0)
    PruneJobs(Store("default")).run(0.0)
    assert not Job.objects.exists()


def test_a_receiver_of_a_part_is_connected_only_once(install_part: Callable[..., None]) -> None:
    signal, received_senders = Signal(), list[Any]()

    def receive(**values: Any) -> None:
        received_senders.append(values["sender"])

    for _ in range(2):
        install_part(receivers=((signal, receive),))
    signal.send("x")
    assert received_senders == ["x"]


def test_a_watch_of_a_part_gets_the_store_and_whether_events_are_handled(install_part: Callable[..., None]) -> None:
    install_part(watches=(lambda store, is_handled: (store.alias, is_handled()),))
    results: list[Any] = [watch(Store("default"), lambda: True) for watch in watches()]
    assert results == [("default", True)]


def test_prunejobs_prints_what_a_part_has_done_with_the_jobs(install_part: Callable[..., None]) -> None:
    stores: list[str] = []
    console = PartConsole(pruned=lambda: {"mailed": True}, after_prune=lambda store: stores.append(store.alias))
    install_part(console=lambda: console)
    assert prunejobs("--database", "default") == "Mailed 0 jobs: none were old enough.\n"
    assert stores == ["default"]


def test_a_part_adds_the_start_of_a_problem_and_the_pages_of_deleted_jobs(
    install_part: Callable[..., None],
    operator: Client,
) -> None:
    def find_job(request: HttpRequest, job_id: str, site: str) -> str:
        return f"/{site}/mail/{job_id}/" if job_id == "7000000007" else ""

    make_job(queue_name="letters")
    since = timezone.now()
    console = PartConsole(known_since=lambda store: {("no-worker", ""): since}, find_job=find_job)
    install_part(console=lambda: console)
    assert [problem.since for problem in Verdict.now(Store("default")).problems] == [since]
    assert operator.get(page("change", 8_000_000_008)).headers["Location"].startswith("/admin/django_skipqueue/job/")
    assert operator.get(page("change", 7_000_000_007)).headers["Location"] == "/admin/mail/7000000007/"


def test_a_part_adds_pages_to_the_admin_of_jobs(install_part: Callable[..., None], operator: Client) -> None:
    def view(job_admin: Any, request: HttpRequest) -> HttpResponse:
        return HttpResponse(f"{job_admin.opts.model_name} {request.path}")

    letters = PartPage(name="letters", path="letters/", view=view)
    install_part(console=lambda: PartConsole(pages=lambda: [letters]))
    urls = admin.site.get_model_admin(Job).get_urls()
    (pattern,) = [url for url in urls if url.name == "django_skipqueue_job_letters"]
    request = operator.get(page("change", make_job().pk)).wsgi_request
    assert pattern.callback(request).content.decode() == f"job {request.path}"


def test_a_part_adds_a_note_to_the_page_of_a_job(install_part: Callable[..., None], operator: Client) -> None:
    job = make_job("failed")
    note = PartNotice(template="admin/color_theme_toggle.html", about=None)
    install_part(console=lambda: PartConsole(about_job=lambda shown_job: note if shown_job == job else None))
    assert operator.get(page("change", job.pk)).context["notes"] == [note]
    assert operator.get(page("change", make_job().pk)).context["notes"] == []


def test_a_section_of_a_part_is_placed_after_the_section_that_it_names(install_part: Callable[..., None]) -> None:
    first_section, second_section, *_ = [section.name for section in SECTIONS]
    letters_section = PartSection[Any](name="letters", template="x.html", content=str, after=first_section)
    install_part(console=lambda: PartConsole(sections=(letters_section,)))
    assert [section.name for section in sections()][:3] == [first_section, "letters", second_section]


def test_a_card_of_a_part_is_placed_after_the_card_that_it_names(install_part: Callable[..., None]) -> None:
    card = Card("letters", "7", "", "")
    install_part(console=lambda: PartConsole(cards=(PartCard(make=lambda _: card, after="queued"),)))
    shown_cards = [shown_card for shown_card, _ in Dashboard.of({}, lambda _: True).cards]
    assert (len(shown_cards), shown_cards[1]) == (len(CARDS) + 1, card)


def test_a_part_adds_queues_and_their_rates(install_part: Callable[..., None], operator: Client) -> None:
    def status() -> dict[str, Any]:
        (document,) = skipqueue("status", "--json").objects
        return {queue["queue"]: queue["jobs_per_minute"] for queue in document["queues"]}

    make_job(queue_name="mail")
    install_part()
    assert status() == {"mail": None}
    assert "obs/min" not in operator.get("/admin/django_skipqueue/queue/").text
    install_part(
        console=lambda: PartConsole(
            queue_rates=lambda store: {"letters": QueueRate(8.0, [])}, known_queues=lambda store, most: ["cards"]
        )
    )
    assert status() == {"letters": 8.0, "mail": 0.0}
    assert "obs/min" in operator.get("/admin/django_skipqueue/queue/").text
    assert [queue.rate for queue in queue_states() if queue.name == "letters"] == [QueueRate(8.0, [])]
    assert {name for family in queues.collect(Store("default")) for (name,) in family.values} == {"cards", "mail"}


def test_a_part_adds_facts_a_filter_and_a_column_to_the_job_pages(
    install_part: Callable[..., None], operator: Client
) -> None:
    class LetterFilter(GroupFilter):
        title = "letter"
        parameter_name = "letter"
        column = "id"

    job, other_job = make_job("failed", max_attempts=5), make_job("failed")
    fact = PartFact(template="x.html", content=lambda job: job.pk)
    install_part(
        console=lambda: PartConsole(
            job_facts=(fact,), job_filters=lambda: (LetterFilter,), job_columns={"max_attempts": "letters"}
        )
    )
    assert JobPage(job, job.enqueued_at).facts_of_parts == [(fact, job.pk)]
    assert listed(operator, f"?letter={job.pk}") == [job.pk]
    assert set(listed(operator)) == {job.pk, other_job.pk}
    assert re.search("^letters +5$", skipqueue("show", job.pk).out, re.MULTILINE)
    assert skipqueue("show", job.pk, "--json").objects[0]["max_attempts"] == 5


def test_a_part_is_called_with_the_ids_of_deleted_jobs(install_part: Callable[..., None]) -> None:
    deleted_ids_and_aliases: list[Any] = []
    install_part(console=lambda: PartConsole(on_delete=lambda ids, alias: deleted_ids_and_aliases.append((ids, alias))))
    job = make_job("failed")
    delete_jobs(Store.default(), [job.pk, make_job("running").pk])
    assert deleted_ids_and_aliases == [({job.pk}, "default")]


def test_a_part_adds_system_checks(install_part: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def check_letters(**_: Any) -> list[Any]:
        return []

    monkeypatch.setattr(registry, "registered_checks", set())
    install_part(checks=(check_letters,))
    register_all()
    registered_checks: list[Any] = registry.get_checks()
    assert check_letters in registered_checks


def test_a_part_adds_services_to_the_loop_that_settles_jobs(install_part: Callable[..., None]) -> None:
    install_part(settle_services=(lambda store, is_idle: (store.alias, is_idle()),))
    results: list[Any] = list(settle_services(Store("default"), is_idle=lambda: True))
    assert results == [("default", True)]


def test_run_jobs_runs_the_planned_jobs_of_a_part(install_part: Callable[..., None]) -> None:
    class Letters:
        """A part's jobs that are planned hourly."""

        database = "default"

        def first(self, now: datetime) -> datetime:
            return now + timedelta(hours=1)

        def fire(self, store: Store, due: datetime) -> datetime | None:
            jobs.noop.defer()
            return due + timedelta(hours=1)

    open_mails = [1]
    install_part(
        planned=lambda tasks: [Letters()] if tasks is True else [],
        before_drained=lambda store: bool(open_mails and open_mails.pop() and jobs.noop.defer()),
    )
    # One job is deferred before the run; `Letters` defers one after each of the two hours.
    assert len(run_jobs(until=timedelta(hours=2, minutes=30), schedules=True)) == 1 + 2
    assert len(run_jobs(until=timedelta(hours=2), schedules=[jobs.noop])) == 0
