"""Every text on the admin's pages goes through gettext.

The pages are rendered in a language that puts each translated text into brackets; the texts of the rows consist of
the letter z. Any other text outside of brackets does not go through gettext.
"""

import re
from collections.abc import Iterator
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_skipqueue.console import counts
from django_skipqueue.console.admin.verbs import many_jobs
from django_skipqueue.console.admin.verbs.many_jobs import Summary
from django_skipqueue.console.counts import Count
from django_skipqueue.console.verbs.table import DISCARD
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job, Queue, Worker

from ...app.rows import STATUSES, make_job, make_worker
from ...app.verbs import BUTTONS, BY_ACTION
from ...harness.languages import bracketed, outside_of_brackets, put_into_brackets, use_translations
from .conftest import LIST, QUEUES, WORKERS, page

pytestmark = pytest.mark.django_db

READ_ATTRIBUTES = ("title", "aria-label", "placeholder", "alt", "data-live", "data-paused", "data-stopped", "data-done")
NOT_TO_BE_TRANSLATED = {"UTC", "token", "Discarded", "Cancelled", "by"}
"""A time zone, the name of an argument, and the `last_error` that the queue writes into the row of a discarded job."""
AGES = (timedelta(milliseconds=3), timedelta(seconds=4), timedelta(minutes=7), timedelta(hours=30), timedelta(days=3))


class Texts(HTMLParser):
    """Collects the texts of a page that people read, including the texts of attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        """The texts of attributes, then all other text as one string: a translated text may contain elements."""
        self._open_tags: list[str] = []
        self._texts: list[str] = []
        self.feed(html)
        self.found.append("".join(self._texts))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("input", "link", "meta", "img", "br"):
            self._open_tags.append(tag)
        self.found += [value for name, value in attrs if name in READ_ATTRIBUTES and value]
        self.found += [value or "" for name, value in attrs if name == "value" and ("type", "submit") in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open_tags:
            while self._open_tags.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style", "code", "pre", "symbol"} & set(self._open_tags):
            self._texts.append(data)


def page_texts(html: str) -> list[str]:
    """Return the texts of a page, without the sidebar and other texts of Django."""
    return Texts(re.sub(r'(?s)<nav[^>]* id="nav-sidebar".*?</nav>|<div id="content-related".*', "", html)).found


def untranslated(html: str) -> set[str]:
    """Return the words of a page outside of brackets."""
    words = {word for text in page_texts(html) for word in outside_of_brackets(text)}
    return {word for word in words if set(word.lower()) != {"z"}} - NOT_TO_BE_TRANSLATED


@pytest.fixture
def _brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a language that puts each text into brackets."""
    put_into_brackets(monkeypatch)


@pytest.fixture
def boss(db: None) -> Client:
    """Return the test client of a superuser, whose name contains only the letter z."""
    client = Client()
    client.force_login(User.objects.create_superuser("zz", password="secret"))
    return client


def make_rows() -> list[Job]:
    """Make jobs in all states and of all ages, and workers that do not serve the queue of these jobs."""
    operation = {"at": "2026-01-01T00:00:00+00:00", "by": "zz", "reason": "zz", "attempts": 1}
    verbs = (
        "retry", "discard", "cancel", "run_now", "postpone", "reschedule", "change_queue", "change_priority"
    )  # fmt: skip
    jobs: list[Job] = []
    for status in STATUSES:
        for number, age in enumerate(AGES):
            values: dict[str, Any] = {
                "task": "zz.zz", "queue_name": "zz", "args": [1], "kwargs": {"token": "zz"}, "locked_by": "zz",
                "last_error": "Zz: zz", "attempts": number, "metadata": {"zz": 1},
                "errors": [{"attempt": 1, "exception": "Zz", "message": "zz", "traceback": "zz\nzz\nzz\nzz\nzz"}],
                "operations": [operation | {"verb": verb} for verb in verbs[: number + 1]], "timeout": 90.5,
                "run_after": age if status == "scheduled" else -age, "enqueued_at": -age - timedelta(seconds=1),
            }  # fmt: skip
            if status == "running":
                values |= {"started_at": -age, "locked_at": -age}
            jobs.append(make_job(status, **(values | {"unique_key": "z" * (len(jobs) + 1)})))
    make_worker(name="zz", hostname="zz", queues=["zzz"], heartbeat=timedelta(seconds=-40)).restart()
    make_worker(name="zzz", hostname="zz", queues=["zzz"], heartbeat=timedelta(seconds=-400))
    Queue.pause("zzz", for_=timedelta(hours=1), by="zz", reason="zz")
    Queue.pause("zzzz")
    return jobs


def page_addresses(jobs: list[Job]) -> Iterator[str]:
    yield from ("/admin/django_skipqueue/", LIST, QUEUES, f"{QUEUES}pause/?queue=zz", WORKERS)
    yield from (
        f"{WORKERS}{name}/?worker={Worker.objects.values_list('pk', flat=True)[0]}" for name in ("restart", "stop")
    )
    for query in ("status=retrying", "status=failed", "q=zz", "q=zzzzz", "task=zz.zz", "time=hour&status=running"):
        yield f"{LIST}?{query}"
    for job in jobs:
        yield from (page(name, job.pk) for name in ("change", "history", "delete"))


@pytest.mark.usefixtures("_brackets")
def test_every_page_can_be_translated(boss: Client, registry: Registry) -> None:
    for address in page_addresses(make_rows()):
        assert untranslated(boss.get(address, follow=True).text) == set(), address


@pytest.mark.slow  # the test asks every question, and reads every answer
@pytest.mark.usefixtures("_brackets")
def test_every_question_and_every_message_can_be_translated(boss: Client, registry: Registry) -> None:
    jobs = make_rows()
    ids = [job.pk for job in jobs]
    for name in BY_ACTION:
        data = {"action": name, "_selected_action": ids, "delay": "90"}
        for more in (
            {},
            {"confirmed": "yes", "over": "x", "delay": "x", "run_after": "x", "queue_name": ",", "priority": "x"},
            {"confirmed": "yes"},
        ):
            assert untranslated(boss.post(LIST, data | more, follow=True).text) == set(), (name, more)
        Job.objects.all().delete()
        jobs = make_rows()
        ids = [job.pk for job in jobs]
    for verb, _ in BUTTONS:
        for job in jobs:
            for send in (boss.get, boss.post):
                text = send(page(verb.name, job.pk), {"confirmed": "yes", "over": "90"}, follow=True).text
                assert untranslated(text) == set(), (verb.name, job.status)


def test_the_page_of_a_job_is_in_the_language_of_the_project(boss: Client, settings: Any, tmp_path: Path) -> None:
    words = ("Queue", "attempt %(number)s running", "running for %(span)s", "Cancel")
    use_translations(settings, tmp_path, {text: bracketed(text) for text in words})
    text = boss.get(page("change", make_job("running", task="zz.zz", queue_name="zz").pk)).text
    for shown in ("⟦Queue⟧", "⟦attempt 1 running⟧", "⟦running for ", "⟦Cancel⟧…"):
        assert shown in text


def test_a_question_that_begins_with_a_number_in_words_begins_with_a_capital_letter(
    settings: Any, tmp_path: Path
) -> None:
    english_forms = ("Discard %(number)s job", "Discard %(number)s jobs")
    translated_forms = ("%(number)s taskon forĵeti", "%(number)s taskojn forĵeti")
    use_translations(settings, tmp_path, {english_forms: translated_forms, "more than %(number)s": "pli ol %(number)s"})
    count = counts.MOST_JOBS_COUNTED + 1
    expected = f"Pli ol {counts.grouped(counts.MOST_JOBS_COUNTED)} taskojn forĵeti?"
    assert many_jobs.question_of(DISCARD, Summary(Count(count), count, [], count, [])) == expected


def test_an_untranslated_text_is_found() -> None:
    assert untranslated('<p title="⟦a ⟦b⟧ c⟧ late">⟦b⟧ Zz <b>later</b></p><code>d</code>') == {"late", "later"}
