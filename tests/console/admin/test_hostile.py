"""Every page escapes the texts of a job and cuts long texts: in its HTML, and in a real browser."""

import time
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Page, expect

from ...app.rows import make_job
from ...harness.table import Case
from .browser import Complaints
from .conftest import LIST, page
from .hostile import LENGTH_OF_LONG_TEXT, TEXTS, addresses, make_hostile_jobs

ROOT = "/admin/django_skipqueue/"
ATTRIBUTES_WITH_ADDRESSES = ("href", "src", "action", "formaction")


class Markup(HTMLParser):
    """Collects the elements and attributes of a page that can run code or load files."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style", "base", "img", "iframe", "object"):
            self.elements.append(f"{tag} {sorted(attrs, key=str)}")
        self.elements += [name for name, _ in attrs if name.startswith("on") or name == "style"]
        self.elements += [
            f"{name}={value}" for name, value in attrs if name in ATTRIBUTES_WITH_ADDRESSES and "script:" in str(value)
        ]


def active_markup(client: Client, address: str) -> list[str]:
    """Return the elements and attributes of the page at this address that can run code or load files."""
    response = client.get(ROOT + address)
    assert response.status_code == 200
    return Markup(response.text).elements


HARMLESS_FIRST = {"harmless": "harmless", **TEXTS}


@pytest.mark.slow  # the test renders every page twice
@pytest.mark.django_db
def test_no_page_has_more_markup_than_with_harmless_rows(operator: Client, case: Case) -> None:
    expected_markup: list[list[str]] = []
    for name, text in HARMLESS_FIRST.items():
        with case(name):
            markup = [active_markup(operator, address) for address in addresses(make_hostile_jobs(text))]
            expected_markup = expected_markup or markup  # the first text is harmless
            assert markup == expected_markup


@pytest.mark.django_db
@pytest.mark.parametrize("verb", ["retry", "discard", "run_again"])
def test_hostile_text_in_the_response_to_a_button_is_escaped(operator: Client, case: Case, verb: str) -> None:
    """The refusal that names the unique key, and the admin log, are escaped too."""
    expected_markup: list[list[str]] = []
    for name, text in HARMLESS_FIRST.items():
        with case(name):
            job = make_hostile_jobs(text)["queued" if verb == "discard" else "discarded"]
            key_taken = make_hostile_jobs(text + "2")["failed"]
            make_job("queued", unique_key=key_taken.unique_key)
            responses = [operator.post(page(verb, posted_job.pk), follow=True).text for posted_job in (job, key_taken)]
            markup = [
                *(Markup(response).elements for response in responses),
                active_markup(operator, f"job/{job.pk}/history/"),
            ]
            expected_markup = expected_markup or markup  # the first text is harmless
            assert markup == expected_markup


@pytest.mark.django_db
def test_hostile_text_in_a_url_is_escaped(operator: Client, case: Case) -> None:
    expected_by_parameter = {
        key: active_markup(operator, f"job/?{key}=harmless")
        for key in ("q", "status", "queue", "task", "time", "p", "o")
    }
    expected_for_job_page = Markup(operator.get(f"{LIST}harmless/change/", follow=True).text).elements
    for name, text in TEXTS.items():
        with case(name):
            quoted = quote(text, safe="")
            for key, expected in expected_by_parameter.items():
                assert active_markup(operator, f"job/?{key}={quoted}") == expected, key
            response = operator.get(f"{LIST}{quoted}/change/", follow=True)
            assert response.status_code == 404 or Markup(response.text).elements == expected_for_job_page


@pytest.mark.slow  # the test renders many pages of megabytes
@pytest.mark.django_db
class TestMegabytes:
    @pytest.mark.parametrize("unit", ["x", "\N{RIGHT-TO-LEFT OVERRIDE}<b>&"])
    def test_long_texts_make_no_page_large_or_slow(self, operator: Client, unit: str) -> None:
        text = (unit * LENGTH_OF_LONG_TEXT)[:LENGTH_OF_LONG_TEXT]
        jobs = make_hostile_jobs(text, "failed", "completed", within_an_index=False)
        for _ in range(20):
            make_job("completed", task=text[:300], last_error=text)
        for address in addresses(jobs, *jobs):
            started_at = time.perf_counter()
            response = operator.get(ROOT + address)
            assert response.status_code == 200
            assert len(response.content) < 600_000, address
            assert time.perf_counter() - started_at < 10, address

    def test_a_text_that_is_cut_has_a_mark(self, operator: Client) -> None:
        job = make_hostile_jobs("x" * LENGTH_OF_LONG_TEXT, "failed", within_an_index=False)["failed"]
        text = operator.get(page("change", job.pk)).text
        assert text.count("characters left out") >= 5  # arguments, metadata, message, traceback, error
        assert text.count("x…") >= 3  # task, worker, key
        assert "x…" in operator.get(LIST).text

    def test_many_small_arguments_are_cut(self, operator: Client) -> None:
        job = make_job("completed", kwargs={f"a{number}": number for number in range(50_000)}, args=[[1] * 200_000])
        response = operator.get(page("change", job.pk))
        assert "49951 more arguments are not shown" in response.text
        assert len(response.content) < 200_000
        assert len(operator.get(LIST).content) < 100_000

    @pytest.mark.parametrize("depth", [400, 900])
    def test_a_deep_value_breaks_no_page(self, operator: Client, depth: int, connect: Any) -> None:
        job = make_job("failed")
        deep = f"{'[' * depth}1{']' * depth}"
        with connect() as session:
            session.execute(
                "UPDATE skipqueue_job SET args = %(deep)s::jsonb, metadata = jsonb_build_object('a', %(deep)s::jsonb)"
                " WHERE id = %(id)s",
                {"deep": deep, "id": job.pk},
            )
        assert operator.get(LIST).status_code == 200
        assert operator.get(page("change", job.pk)).status_code == 200


@pytest.mark.slow  # the test opens every page in a browser
@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_a_real_browser_shows_hostile_texts_and_runs_no_script(
    open_admin: Callable[..., Page], complaints: Complaints
) -> None:
    window = open_admin(User.objects.create_superuser("boss"), "django_skipqueue/job/")
    root = window.url.removesuffix("job/")
    jobs_by_text = {text: make_hostile_jobs(text) for text in TEXTS.values()}
    pages = dict.fromkeys(["job/?status=failed", "job/?time=day", "worker/"], "")
    for text, jobs in jobs_by_text.items():
        pages |= {f"job/{jobs[status].pk}/change/": visible_text(text)[:40] for status in ("failed", "completed")}
        pages |= dict.fromkeys([f"job/{jobs['failed'].pk}/{name}/" for name in ("history", "delete")], "")
    for address, text in pages.items():
        response = window.goto(root + address)
        assert response is not None
        assert response.status == 200
        assert "content-security-policy" in response.headers
        expect(window.locator("#content")).to_be_visible()
        assert text in visible_text(window.locator("#content").inner_text())
    for jobs in jobs_by_text.values():
        window.goto(f"{root}job/{jobs['discarded'].pk}/change/")
        window.get_by_role("button", name="Retry").click()
        expect(window.locator(".messagelist")).to_contain_text("is back in the queue")
    assert complaints == []


def visible_text(text: str) -> str:
    """Return a text as a browser shows it: in one line, without characters that cannot be printed."""
    return " ".join("".join(character for character in text if character.isprintable() or character.isspace()).split())
