"""The box with current problems above every page of the admin, the worst problem first."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin import AdminSite
from django.contrib.admin.utils import quote
from django.db import connection
from django.test import Client
from django.utils import translation
from playwright.sync_api import Page

from django_skipqueue.console.admin import notices
from django_skipqueue.console.admin.jobs.job_admin import JobAdmin
from django_skipqueue.console.admin.notices import notices_cache
from django_skipqueue.console.queues_and_workers import state_after
from django_skipqueue.models import Incident, Job, Queue

from ....app.rows import make_job, make_worker
from ....harness.languages import use_translations
from ..conftest import LIST, QUEUES, WORKERS, page

pytestmark = pytest.mark.django_db

LONG_AGO = timedelta(minutes=-5)

COMMAND = "<code>python manage.py runworker</code>"
APP = "/admin/django_skipqueue/"
DASHBOARD = f"{LIST}dashboard/"


def notice_box(client: Client, address: str = LIST) -> str:
    """Return the HTML of the box with the problems, in one line; empty if the page has no box."""
    text = " ".join(client.get(address).text.split())
    _, start, rest = text.partition('<div class="skipqueue-banner"')
    return start + rest.partition("</div>")[0]


def listed_problems(client: Client) -> list[str]:
    return [re.sub("<[^>]*>", "", item).strip() for item in re.findall(r"<li>(.*?)</li>", notice_box(client))]


@pytest.mark.parametrize("address", ["/admin/", APP, LIST, WORKERS, QUEUES])
def test_every_page_shows_what_is_wrong_and_nothing_if_all_is_well(operator: Client, address: str) -> None:
    worker = make_worker()
    assert notice_box(operator, address) == ""
    worker.delete()
    job = make_job()
    notices_cache.clear()
    assert COMMAND in notice_box(operator, address)
    assert COMMAND in notice_box(operator, page("change", job.pk))


def test_the_dashboard_also_says_that_all_is_well(operator: Client) -> None:
    make_worker()
    assert 'data-status="ok"' in notice_box(operator, DASHBOARD)
    assert "All is well." in notice_box(operator, DASHBOARD)
    make_job(queue_name="mail")
    make_worker(queues=["mail"], name="w", heartbeat=timedelta(seconds=-40))
    notices_cache.clear()
    box = notice_box(operator, DASHBOARD)
    assert 'data-status="warning"' in box
    assert "1 problem" in box


def test_a_problem_has_a_link_advice_and_a_command(operator: Client) -> None:
    make_worker(queues=["default"])
    make_job(queue_name="it's", run_after=LONG_AGO)
    box = notice_box(operator)
    assert (
        f'<a href="{LIST}?status=queued&amp;queue=it%27s">No worker serves queue it&#x27;s: 1 job has waited since '
        in box
    )
    assert "<code>python manage.py runworker --queues &#x27;it&#x27;&quot;&#x27;&quot;&#x27;s&#x27;</code>" in box
    assert "Start a worker for it." in box


def test_the_box_says_how_long_a_problem_has_lasted(operator: Client) -> None:
    make_job()
    Incident.objects.create(rule="no-worker", subject="")
    Incident.objects.update(since="2020-01-01T00:00Z")
    assert re.search(r"No worker is alive, and jobs wait</strong> \(has lasted \d{4} d\)\.", notice_box(operator))


def test_the_worst_problem_comes_first_and_all_but_two_are_folded(operator: Client) -> None:
    make_worker(queues=["other"], name="w", heartbeat=timedelta(seconds=-40))
    for name in ("a", "b", "c", "d"):
        make_job(queue_name=name)
    box = notice_box(operator)
    assert 'data-status="critical"' in box
    assert "<strong>5 problems</strong>" in box
    visible, _, folded = box.partition("<details>")
    assert (visible.count("<li>"), folded.count("<li>")) == (2, 3)
    assert "<summary>3 more problems</summary>" in folded
    assert "The worker w is late with its heartbeat" in folded


def test_a_paused_queue_is_no_problem_until_jobs_have_waited_in_it_for_long(operator: Client) -> None:
    make_worker(queues=["mail"])
    Queue.pause("sms", by="ann", reason="no answer")
    job = make_job(queue_name="sms")
    assert notice_box(operator) == ""
    Job.objects.filter(pk=job.pk).update(run_after="2020-01-01T00:00Z")
    notices_cache.clear()
    assert 'data-status="warning"' in notice_box(operator)
    assert f'<a href="{QUEUES}sms/change/">1 job waits in the paused queue sms</a>' in notice_box(operator)


def test_a_process_caches_the_problems_for_a_few_seconds(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    make_worker()
    assert notice_box(operator) == ""
    make_job(queue_name="mail")
    make_worker(name="w", heartbeat=timedelta(seconds=-40))
    assert notice_box(operator) == ""
    monkeypatch.setattr(notices, "CACHE_SECONDS", 0.0)
    assert notice_box(operator) != ""


def test_the_box_is_in_the_language_of_the_user(operator: Client, settings: Any, tmp_path: Any) -> None:
    make_job()
    with translation.override("en-us"):
        assert "No worker is alive" in notice_box(operator)
    use_translations(settings, tmp_path, {"No worker is alive, and jobs wait": "Neniu laboristo vivas"})
    assert "Neniu laboristo vivas" in notice_box(operator)


def test_users_who_may_not_view_jobs_see_no_box(log_in: Callable[..., Client]) -> None:
    make_job()
    client = log_in("retry_job", "view_worker")
    assert notice_box(client, "/admin/") == ""
    assert notice_box(client, WORKERS) == ""


def test_the_box_has_no_link_to_a_page_that_the_user_may_not_view(log_in: Callable[..., Client]) -> None:
    make_worker(name="w", heartbeat=timedelta(seconds=-40))
    box = notice_box(log_in("view_job"))
    assert "<strong>The worker w is late with its heartbeat</strong>" in box
    assert WORKERS not in box


def test_the_index_says_that_rules_could_not_be_applied(operator: Client) -> None:
    make_worker()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE skipqueue_worker RENAME TO somewhere_else")
    response = operator.get("/admin/")
    assert response.status_code == 200
    assert "rules could not be applied" in response.text


def test_an_index_template_of_the_project_is_kept() -> None:
    class Own(AdminSite):
        index_template = "own.html"

    plain, own = AdminSite(), Own()
    for site in (plain, own):
        site.register(Job, JobAdmin)
    assert plain.index_template == "admin/django_skipqueue/index.html"
    assert own.index_template == "own.html"


def test_the_box_escapes_html_in_names(operator: Client) -> None:
    make_worker(queues=["default"])
    make_job(queue_name="<script>alert(1)</script>")
    assert "&lt;script&gt;" in notice_box(operator)
    assert "<script>alert" not in notice_box(operator)


@pytest.mark.parametrize(
    ("age", "state"), [(0, "live"), (20, "live"), (26, "late"), (59, "late"), (60, "stale"), (900, "stale")]
)
def test_a_worker_is_late_after_two_missed_heartbeats_and_stale_after_a_minute(age: float, state: str) -> None:
    assert state_after(timedelta(seconds=age)) == state


def test_a_worker_that_is_late_or_dead_is_named_until_its_jobs_are_recovered(operator: Client) -> None:
    make_worker(name="web-1/1")
    make_worker(name="web-2/1", heartbeat=timedelta(seconds=-40))
    dead_worker = make_worker(name="web-3/1", heartbeat=LONG_AGO)
    held_job = make_job("running", locked_by=dead_worker.id)
    assert f'href="{WORKERS}{quote(dead_worker.id)}/change/"' in notice_box(operator)
    late_problem, dead_problem = listed_problems(operator)
    assert late_problem == "The worker web-2/1 is late with its heartbeat."
    assert dead_problem.startswith("1 worker has been dead since ")
    held_job.delete()
    notices_cache.clear()
    assert len(listed_problems(operator)) == 1


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("width", [390, 1400])
def test_the_box_is_only_a_few_lines_high(open_admin: Callable[..., Page], width: int) -> None:
    from django.contrib.auth.models import User

    make_worker(queues=["other"], name="w", heartbeat=timedelta(seconds=-40))
    for number in range(12):
        make_job(queue_name=f"queue-{number}")
    address = LIST.removeprefix("/admin/")
    browser_page = open_admin(User.objects.create_superuser("ann"), address, viewport={"width": width, "height": 900})
    height = browser_page.locator(".skipqueue-banner").evaluate("box => box.offsetHeight")
    assert height < (150 if width > 800 else 320)
    assert browser_page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    browser_page.locator(".skipqueue-banner summary").click()
    assert browser_page.locator(".skipqueue-banner li").last.is_visible()
