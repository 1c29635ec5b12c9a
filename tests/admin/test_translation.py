"""Every text on the admin's pages goes through gettext, and is German in Germany.

The pages are rendered in a language that puts each translated text into brackets; all that the rows carry is made of
the letter z. Whatever else stands outside of brackets is a text that cannot be translated. Then they are rendered in
German, and searched for each English text that the German translation has.
"""

import re
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import translation

from django_skipqueue.admin.health.notices import notices_cache
from django_skipqueue.admin.verbs import many_jobs
from django_skipqueue.admin.verbs.summary import Summary
from django_skipqueue.admin.verbs.table import ACTIONS, BUTTONS
from django_skipqueue.models import Job, Queue, Worker
from django_skipqueue.operators import counts
from django_skipqueue.operators.counts import Count
from django_skipqueue.tasks.registry import Registry

from ..app.rows import STATUSES, make_job, make_worker
from ..test_translations import catalog, forms, texts
from .conftest import LIST, QUEUES, WORKERS, page

pytestmark = pytest.mark.django_db

READ_BY_PEOPLE = ("title", "aria-label", "placeholder", "alt", "data-live", "data-paused", "data-stopped", "data-done")
NOT_TO_BE_TRANSLATED = {"UTC", "token", "Discarded", "Cancelled", "by"}
"""A time zone, the name of an argument, and the `last_error` that the queue writes into the row of a discarded job."""
AGES = (timedelta(milliseconds=3), timedelta(seconds=4), timedelta(minutes=7), timedelta(hours=30), timedelta(days=3))


class Texts(HTMLParser):
    """The texts of a page that people read, those of attributes included."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        """Of attributes, and of the elements together: a translated text may contain elements."""
        self._open: list[str] = []
        self._data: list[str] = []
        self.feed(html)
        self.found.append("".join(self._data))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("input", "link", "meta", "img", "br"):
            self._open.append(tag)
        self.found += [value for name, value in attrs if name in READ_BY_PEOPLE and value]
        self.found += [value or "" for name, value in attrs if name == "value" and ("type", "submit") in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style", "code", "pre", "symbol"} & set(self._open):
            self._data.append(data)


def texts_on(html: str) -> list[str]:
    """The texts of a page, without those of other apps."""
    return Texts(re.sub(r'(?s)<nav[^>]* id="nav-sidebar".*?</nav>|<div id="content-related".*', "", html)).found


def untranslated(html: str) -> set[str]:
    """The words of a page that stand outside of brackets."""
    words: set[str] = set()
    for text in texts_on(html):
        rest, replaced = text, 1
        while replaced:
            rest, replaced = re.subn("⟦[^⟦⟧]*⟧", " ", rest)
        words |= {word for word in re.findall(r"[^\W\d_]+", rest) if set(word.lower()) != {"z"}}
    return words - NOT_TO_BE_TRANSLATED


@cache
def english() -> dict[str, re.Pattern[str]]:
    """Each text of ours that is another one in German, with the pattern of what a page shows of it."""
    patterns = {}
    for text, translated in texts(catalog("de")).items():
        for source, german in zip(forms(text), forms(translated), strict=True):
            words = [re.escape(part.strip()) for part in re.split(r"%\(\w+\)s|</?\w+>", source)]
            pattern = r"\b.+?\b".join(filter(re.compile(r"\w").search, words))
            if pattern and source.casefold() != german.casefold():
                patterns[source] = re.compile(rf"(?<!\w){pattern}(?!\w)", re.IGNORECASE)
    return patterns


def english_on(html: str) -> set[str]:
    """The texts of ours that a page shows in English."""
    shown = "\n".join(" ".join(text.split()) for text in texts_on(html))
    return {source for source, pattern in english().items() if pattern.search(shown)}


@pytest.fixture
def _brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A language that puts each text into brackets."""

    def gettext(message: str) -> str:
        return f"⟦{message}⟧"

    def ngettext(singular: str, plural: str, number: float) -> str:
        return gettext(singular if number == 1 else plural)

    functions: dict[str, Any] = {
        "gettext": gettext,
        "ngettext": ngettext,
        "pgettext": lambda context, message: gettext(message),
        "npgettext": lambda context, *texts: ngettext(*texts),
    }
    for name, function in functions.items():
        monkeypatch.setattr(translation._trans, name, function)  # type: ignore[attr-defined]


@pytest.fixture
def boss(db: None) -> Client:
    """The browser of somebody whose name needs no translation."""
    client = Client()
    client.force_login(User.objects.create_superuser("zz", password="secret"))
    return client


def make_rows() -> list[Job]:
    """Jobs in all states and of all ages, and workers that serve none of them."""
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


def addresses(jobs: list[Job]) -> Iterator[str]:
    yield from ("/admin/django_skipqueue/", LIST, QUEUES, f"{QUEUES}pause/?queue=zz", WORKERS)
    yield from (
        f"{WORKERS}{name}/?worker={Worker.objects.values_list('pk', flat=True)[0]}" for name in ("restart", "stop")
    )
    for query in ("status=retrying", "status=failed", "q=zz", "q=nothing", "task=zz.zz", "time=hour&status=running"):
        yield f"{LIST}?{query.replace('nothing', 'zzzzz')}"
    for job in jobs:
        yield from (page(name, job.pk) for name in ("change", "history", "delete"))


@pytest.mark.usefixtures("_brackets")
def test_every_page_can_be_translated(boss: Client, registry: Registry) -> None:
    for address in addresses(make_rows()):
        notices_cache.clear()
        assert untranslated(boss.get(address, follow=True).text) == set(), address


@pytest.mark.usefixtures("_brackets")
def test_every_question_and_every_message_can_be_translated(boss: Client, registry: Registry) -> None:
    jobs = make_rows()
    chosen = [job.pk for job in jobs]
    for name in ACTIONS:
        data = {"action": name, "_selected_action": chosen, "minutes": "90"}
        for more in (
            {},
            {"confirmed": "yes", "minutes": "x", "queue_name": ",", "priority": "x"},
            {"confirmed": "yes"},
        ):
            assert untranslated(boss.post(LIST, data | more, follow=True).text) == set(), (name, more)
        Job.objects.all().delete()
        jobs = make_rows()
        chosen = [job.pk for job in jobs]
    for verb, _ in BUTTONS:
        for job in jobs:
            for send in (boss.get, boss.post):
                text = send(page(verb.name, job.pk), {"confirmed": "yes", "minutes": "90"}, follow=True).text
                assert untranslated(text) == set(), (verb.name, job.status)


@pytest.fixture
def _in_german(settings: Any) -> None:
    settings.LANGUAGE_CODE = "de"


@pytest.mark.usefixtures("_in_german")
def test_no_page_in_german_has_english_texts(boss: Client, registry: Registry) -> None:
    for address in addresses(make_rows()):
        notices_cache.clear()
        assert english_on(boss.get(address, follow=True).text) == set(), address


@pytest.mark.usefixtures("_in_german")
def test_no_question_in_german_has_english_texts(boss: Client, registry: Registry) -> None:
    jobs = make_rows()[1 :: len(AGES)]  # of each status the one with an attempt
    for name in ACTIONS:
        data = {"action": name, "_selected_action": [job.pk for job in jobs]}
        for more in ({}, {"confirmed": "yes", "minutes": "x", "queue_name": ",", "priority": "x"}):
            if (
                name not in ("run_now_selected", "discard_selected", "cancel_selected", "delete_selected") or not more
            ):  # the others would not ask again
                assert english_on(boss.post(LIST, data | more, follow=True).text) == set(), (name, more)
    for verb, button in BUTTONS:
        for job in jobs:
            if button.asks:
                assert english_on(boss.get(page(verb.name, job.pk), follow=True).text) == set(), (verb.name, job.status)


@pytest.mark.usefixtures("_in_german")
def test_pages_are_in_german(boss: Client) -> None:
    job = make_job("running", task="zz.zz", queue_name="zz")
    text = boss.get(page("change", job.pk)).text
    for german in ("Warteschlange", "Versuch 1", "läuft seit", "Abbrechen…"):
        assert german in text


@pytest.mark.usefixtures("_in_german")
def test_a_question_that_begins_with_its_number_begins_with_a_capital() -> None:
    _, action = ACTIONS["discard_selected"]
    most = counts.CAP + 1
    assert many_jobs.question_of(action, Summary(Count(most), most, [], most, [])) == "Mehr als 10.000 Jobs verwerfen?"


def test_english_on_a_page_is_found() -> None:
    assert english_on("<p>Wartet. Versuch 2 ist fällig</p>") == set()
    assert english_on('<p title="Go back">3 jobs <b>were</b> deleted.</p>') >= {
        "Go back",
        "%(number)s jobs were deleted.",
    }


def test_what_is_not_translated_is_found() -> None:
    assert untranslated('<p title="⟦a ⟦b⟧ c⟧ late">⟦b⟧ Zz <b>later</b></p><code>d</code>') == {"late", "later"}
