"""What a part gives to the core and the console, tried with parts that exist in this test alone."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.dispatch import Signal
from django.http import HttpRequest, HttpResponse
from django.test import Client

from django_skipqueue.console.admin.dashboard.cards import CARDS, Card
from django_skipqueue.console.admin.dashboard.dashboard import Dashboard
from django_skipqueue.console.admin.dashboard.sections import SECTIONS, sections
from django_skipqueue.console.admin.notices import Notices
from django_skipqueue.console.metrics.queues import queues
from django_skipqueue.console.parts import PartCard, PartConsole, PartNotice, PartPage, PartSection
from django_skipqueue.console.queue_states import QueueRate, queue_states
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.prune import Prune, Pruner
from django_skipqueue.supervisor.services import watches
from django_skipqueue.values import part as parts
from django_skipqueue.values.part import Part, install_parts

from ..admin.conftest import log_in, operator, page
from ..app.rows import make_job
from ..management.skipqueue.running import skipqueue
from ..management.test_prunejobs import prunejobs

__all__ = ["log_in", "operator"]

pytestmark = [pytest.mark.core, pytest.mark.django_db(transaction=True)]

OLD = timedelta(days=-100)


@pytest.fixture(autouse=True)
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs one part, which is the only one."""
    monkeypatch.setattr(parts, "_installed", {})

    def make(**given: Any) -> None:
        install_parts([Part(name="mail", **given)])

    return make


def test_a_part_prunes_in_place_of_the_core_unless_it_leaves_the_jobs_to_it(install: Callable[..., None]) -> None:
    made = [make_job("completed", finished_at=OLD).pk for _ in range(2)]
    asked: list[Any] = []
    left: dict[str, int] | None = {"completed": 7}

    def on_prune(store: Store, ids: list[int]) -> dict[str, int] | None:
        asked.append((store.alias, sorted(ids)))
        return left

    install(on_prune=on_prune)
    assert Store("default").prune() == {"completed": 7}
    assert Job.objects.count() == 2
    left = None
    assert Store("default").prune() == {"completed": 2}
    assert not Job.objects.exists()
    assert asked == [("default", made)] * 2


def test_a_part_is_asked_before_each_batch(install: Callable[..., None]) -> None:
    called: list[str] = []
    install(before_prune=lambda store: lambda: called.append(store.alias))
    pruner = Pruner(Store("default"))
    assert called == []
    pruner.batch()
    pruner.batch()
    assert called == ["default"] * 2


def test_a_supervisor_keeps_jobs_for_the_grace_of_a_part(install: Callable[..., None], settings: Any) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
    make_job("completed", finished_at=timedelta(seconds=-10))
    install(prune_grace=60.0)
    Prune(Store("default")).run(0.0)
    assert Job.objects.exists()
    install(prune_grace=5.0)
    Prune(Store("default")).run(0.0)
    assert not Job.objects.exists()


def test_a_receiver_is_connected_once(install: Callable[..., None]) -> None:
    signal, received = Signal(), list[Any]()

    def receive(**values: Any) -> None:
        received.append(values["sender"])

    for _ in range(2):
        install(receivers=((signal, receive),))
    signal.send("x")
    assert received == ["x"]


def test_a_service_is_given_the_store_and_whether_events_are_handled(install: Callable[..., None]) -> None:
    install(watches=(lambda store, is_handled: (store.alias, is_handled()),))
    made: list[Any] = [watch(Store("default"), lambda: True) for watch in watches()]
    assert made == [("default", True)]


def test_a_command_says_what_becomes_of_pruned_jobs(install: Callable[..., None]) -> None:
    stores: list[str] = []
    console = PartConsole(pruned=lambda: {"mailed": True}, after_prune=lambda store: stores.append(store.alias))
    install(console=lambda: console)
    assert prunejobs("--database", "default") == "Mailed 0 jobs: none were old enough.\n"
    assert stores == ["default"]


def test_a_part_has_notices_and_knows_the_pages_of_jobs_that_are_gone(
    install: Callable[..., None],
    operator: Client,
) -> None:
    def find_job(request: HttpRequest, job_id: str, site: str) -> str:
        return f"/{site}/mail/{job_id}/" if job_id == "7" else ""

    make_job(queue_name="letters")
    console = PartConsole(notices=lambda waiting: [PartNotice(template="x.html", about=waiting)], find_job=find_job)
    install(console=lambda: console)
    assert Notices.now().of_parts == (PartNotice(template="x.html", about=["letters"]),)
    assert operator.get(page("change", 8)).headers["Location"].startswith("/admin/django_skipqueue/job/")
    assert operator.get(page("change", 7)).headers["Location"] == "/admin/mail/7/"


def test_a_part_has_pages_beside_the_list_of_jobs(install: Callable[..., None], operator: Client) -> None:
    def view(job_admin: Any, request: HttpRequest) -> HttpResponse:
        return HttpResponse(f"{job_admin.opts.model_name} {request.path}")

    letters = PartPage(name="letters", path="letters/", view=view)
    install(console=lambda: PartConsole(pages=lambda: [letters]))
    (found,) = [each for each in admin.site._registry[Job].get_urls() if each.name == "django_skipqueue_job_letters"]
    request = operator.get(page("change", make_job().pk)).wsgi_request
    assert found.callback(request).content.decode() == f"job {request.path}"
    assert letters.address == "admin:django_skipqueue_job_letters"


def test_a_part_says_something_on_the_page_of_a_job(install: Callable[..., None], operator: Client) -> None:
    job = make_job("failed")
    note = PartNotice(template="admin/color_theme_toggle.html", about=None)
    install(console=lambda: PartConsole(about_job=lambda each: note if each == job else None))
    assert operator.get(page("change", job.pk)).context["notes"] == [note]
    assert operator.get(page("change", make_job().pk)).context["notes"] == []


def test_a_section_of_the_dashboard_stands_after_the_one_that_it_names(install: Callable[..., None]) -> None:
    first, second, *_ = [section.name for section in SECTIONS]
    section = PartSection(name="letters", template="x.html", content=str, after=first)
    install(console=lambda: PartConsole(sections=(section,)))
    assert [each.name for each in sections()][:3] == [first, "letters", second]


def test_a_card_of_the_dashboard_stands_after_the_one_that_it_names(install: Callable[..., None]) -> None:
    card = Card("letters", "7", "", "")
    install(console=lambda: PartConsole(cards=(PartCard(make=lambda _: card, after="queued"),)))
    shown = [each for each, _ in Dashboard.of({}, lambda _: True).cards]
    assert (len(shown), shown[1]) == (len(CARDS) + 1, card)


def test_a_part_knows_queues_and_their_rates(install: Callable[..., None], operator: Client) -> None:
    def status() -> dict[str, Any]:
        (found,) = skipqueue("status", "--json").objects
        return {each["queue"]: each["jobs_per_minute"] for each in found["queues"]}

    make_job(queue_name="mail")
    install()
    assert status() == {"mail": None}
    assert "obs/min" not in operator.get("/admin/django_skipqueue/queue/").text
    install(
        console=lambda: PartConsole(
            queue_rates=lambda store: {"letters": QueueRate(8.0, [])}, known_queues=lambda store, most: ["cards"]
        )
    )
    assert status() == {"letters": 8.0, "mail": 0.0}
    assert "obs/min" in operator.get("/admin/django_skipqueue/queue/").text
    assert [each.rate for each in queue_states() if each.name == "letters"] == [QueueRate(8.0, [])]
    assert {name for family in queues(Store("default")) for (name,) in family.values} == {"cards", "mail"}
