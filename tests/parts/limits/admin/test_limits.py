"""The page of limits, the limits on the dashboard, and the list of the jobs of a key."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_skipqueue import job, limit
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.parts.limits import admin as limits_page
from django_skipqueue.parts.rates import admin as rates_page

from ....app.limit_rows import make_halted, make_keyed, make_limited, make_rated
from ....app.rows import make_job
from ....console.admin.conftest import LIST, listed, page

LIMITS = f"{LIST}limits/"

pytestmark = pytest.mark.django_db


def pay(token: str) -> None:
    """A task with a secret in the key of its limit."""


def cell_texts(html: str) -> list[list[str]]:
    """The texts of the cells of all rows of the page."""
    rows = re.findall(r"(?s)<tr>(<th scope=\"row\".*?)</tr>", html)
    return [[text_of(cell_html) for cell_html in re.findall(r"(?s)<t[hd] [^>]*>(.*?)</t[hd]>", row)] for row in rows]


def text_of(html: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", html).split())


def keys_on_card(response: Any, name: str = "keys") -> list[str]:
    """The keys that the card with this name shows."""
    return [state.current.key for card in response.context["page"].cards if card.name == name for state in card.states]


def lists_of_keys(client: Client, query: str) -> list[Any]:
    """The keys in the lists of limits and rates of a page, the notes of its cards, and whether a page follows."""
    response = client.get(LIMITS + query)
    page = response.context["page"]
    notes = [str(card.note) for card in page.cards]
    return [keys_on_card(response), keys_on_card(response, "rates"), notes, page.next_id is not None]


def test_the_page_shows_halted_sequences_and_then_all_keys(operator: Client) -> None:
    make_limited("limit:t account=1", held=2, waiting=3)
    failed = make_halted("sequence:t order=7", minutes=720)
    html = operator.get(LIMITS).text
    halted_row = ["sequence:t order=7", "sequence", f"halted job {failed.pk} failed 12 h ago", "1 of 1", "1", "6 h"]
    assert cell_texts(html)[0] == halted_row
    assert [row[:4] for row in cell_texts(html)[1:]] == [
        ["limit:t account=1", "limit", "waits", "2 of 2"],
        ["sequence:t order=7", "sequence", halted_row[2], "1 of 1"],
    ]
    assert f'href="{page("change", failed.pk)}"' in html


def test_a_page_without_limits_says_so(operator: Client) -> None:
    assert "No job waits for a permit." in operator.get(LIMITS).text


def test_the_list_of_keys_has_several_pages(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_page, "PER_PAGE", 2)
    for key in "abcde":
        make_limited(key)
    make_halted("z")
    keys, address = [], LIMITS
    while address:
        response = operator.get(address)
        keys += keys_on_card(response)
        next_query = response.context["page"].next
        assert (next_query in response.text) is True
        address = next_query and LIMITS + next_query
    assert keys == ["a", "b", "c", "d", "e", "z"]
    assert keys_on_card(operator.get(f"{LIMITS}?after={make_keyed('e').pk}"), "halted") == []


def test_the_list_of_keys_can_begin_at_a_text(operator: Client) -> None:
    for key in ("limit:a", "limit:b", "sequence:a"):
        make_limited(key)
    assert keys_on_card(operator.get(f"{LIMITS}?from=limit:b")) == ["limit:b", "sequence:a"]
    assert keys_on_card(operator.get(f"{LIMITS}?from=limit%3Aaa")) == ["limit:b", "sequence:a"]
    assert "of this or a later key" in operator.get(f"{LIMITS}?from=zzz").text
    assert keys_on_card(operator.get(f"{LIMITS}?from=%00&after=x%00")) == ["limit:a", "limit:b", "sequence:a"]
    assert keys_on_card(operator.get(f"{LIMITS}?after={make_job().pk}")) == ["limit:a", "limit:b", "sequence:a"]


class TestSecrets:
    @pytest.fixture(autouse=True)
    def _secret(self, registry: Registry) -> None:
        job(name="shop.pay", concurrency=limit(1, by="token"))(pay)
        for status in ("running", "blocked"):
            self.job_with_secret = make_keyed(
                'limit:shop.pay token="tok-4711"', status, task="shop.pay", kwargs={"token": "tok-4711"}
            )
        make_limited("limit:shop.send a=1")

    def test_a_secret_in_a_key_is_on_no_page(self, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits_page, "PER_PAGE", 1)
        jobs = f"{LIST}?status=blocked&limit_of={self.job_with_secret.pk}"
        for address in (LIMITS, jobs, f"{LIST}dashboard/"):
            html = operator.get(address).text
            assert "shop.pay" in html
            assert "tok-4711" not in html

    def test_no_search_finds_a_secret_in_a_key(self, operator: Client) -> None:
        response = operator.get(LIMITS)
        assert keys_on_card(response) == ["limit:shop.send a=1"]
        assert keys_on_card(response, "masked") == ['limit:shop.pay token="tok-4711"']
        assert keys_on_card(operator.get(f"{LIMITS}?from=limit:shop.pay token=")) == ["limit:shop.send a=1"]

    @pytest.mark.parametrize("number_of_readable_keys", [1, 2, 3])
    def test_the_start_of_a_list_reveals_nothing_about_a_key_with_a_secret(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch, number_of_readable_keys: int
    ) -> None:
        """A page that begins before the secret key equals a page that begins after it. No page begins at its job."""
        monkeypatch.setattr(limits_page, "PER_PAGE", 2)
        monkeypatch.setattr(rates_page, "MOST_RATES", 2)
        make_rated('rate:shop.pay token="tok-4711"', task="shop.pay", kwargs={"token": "tok-4711"})
        for number in range(number_of_readable_keys - 1):
            make_limited(f"limit:shop.z{number}")
        for number in range(number_of_readable_keys):
            make_rated(f"rate:shop.z{number}")
        for kind in ("limit", "rate"):
            lists_from_before, lists_from_behind = (
                lists_of_keys(operator, f'?from={kind}:shop.pay token="tok-{digit}') for digit in "39"
            )
            assert lists_from_before == lists_from_behind, kind
        assert lists_of_keys(operator, f"?after={self.job_with_secret.pk}") == lists_of_keys(operator, "")


class TestTheJobsOfAKey:
    def test_waiting_jobs_are_in_the_order_of_their_admission(self, operator: Client) -> None:
        low, high = make_keyed("k"), make_keyed("k", priority=5)
        make_keyed("other")
        make_keyed("k", "running")
        waits_for_job = make_keyed("k", held=True)
        assert listed(operator, f"?status=blocked&limit_of={low.pk}") == [high.pk, low.pk]
        response = operator.get(f"{LIST}?status=blocked&limit_of={low.pk}")
        tabs = {tab.state: str(tab.count) for tab in response.context["cl"].tabs}
        assert (tabs["blocked"], tabs["running"]) == ("2", "None")
        assert response.context["cl"].partly_searched is None
        assert waits_for_job.pk in listed(operator, f"?limit_of={low.pk}")

    def test_the_list_shows_the_jobs_of_a_key_in_every_status(self, operator: Client) -> None:
        jobs = {status: make_keyed("k", status) for status in ("blocked", "running", "failed", "completed")}
        make_job()
        assert set(listed(operator, f"?limit_of={jobs['failed'].pk}")) == {job.pk for job in jobs.values()}
        assert listed(operator, f"?status=running&limit_of={jobs['failed'].pk}") == [jobs["running"].pk]

    @pytest.mark.parametrize("other_filter", ["queue=mail", "task=t", "q=here", "queue=mail&time=hour"])
    def test_the_filter_by_key_works_with_other_filters(self, operator: Client, other_filter: str) -> None:
        matching_job = make_keyed("k", queue_name="mail", task="t", kwargs={"where": "here"})
        make_keyed("k")
        make_keyed("other", queue_name="mail", task="t", kwargs={"where": "here"})
        response = operator.get(f"{LIST}?status=blocked&limit_of={matching_job.pk}&{other_filter}")
        assert [job.pk for job in response.context["cl"].result_list] == [matching_job.pk]
        tabs = {tab.state: str(tab.count) for tab in response.context["cl"].tabs}
        assert tabs["blocked"] == "1"

    @pytest.mark.parametrize("job_id", ["99999999", "x", "-1", "1e9"])
    def test_the_list_is_empty_if_the_job_that_stands_for_the_key_was_deleted(
        self, operator: Client, job_id: str
    ) -> None:
        make_keyed("k")
        assert listed(operator, f"?status=blocked&limit_of={job_id}") == []

    def test_the_list_says_that_a_job_has_no_limit(self, operator: Client) -> None:
        response = operator.get(f"{LIST}?limit_of={make_job().pk}")
        assert list(response.context["cl"].result_list) == []
        assert "has no limit" in response.text


def test_the_dashboard_shows_keys_only_if_jobs_wait(operator: Client) -> None:
    dashboard = f"{LIST}dashboard/"
    assert "skipqueue-limits" not in operator.get(dashboard).text
    make_limited("limit:t")
    make_halted("sequence:t")
    html = operator.get(dashboard).text
    assert html.index("sequence:t") < html.index("limit:t")
    assert f'href="{LIMITS}"' in html


def test_users_who_may_not_view_jobs_may_not_see_the_page_of_limits(log_in: Callable[..., Client]) -> None:
    assert log_in("view_worker").get(LIMITS).status_code == 403


def test_the_page_of_limits_refuses_a_post(operator: Client) -> None:
    assert operator.post(LIMITS).status_code == 405


class TestRates:
    def test_rates_are_shown_with_their_tokens(self, operator: Client) -> None:
        first, *_ = make_rated("rate:t tenant=7", waiting=3, minutes=720, rate_interval=0.6, rate_burst=4)
        html = operator.get(LIMITS).text
        assert cell_texts(html) == [["rate:t tenant=7", "100/m", "4 of 4", "3", "soon", "12 h"]]
        assert f'href="{page("change", first.pk)}"' in html
        assert "No job waits for a permit" not in html

    def test_only_the_first_rates_are_shown(self, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rates_page, "MOST_RATES", 2)
        for key in "abc":
            make_rated(key)
        response = operator.get(LIMITS)
        assert [row[0] for row in cell_texts(response.text)] == ["a", "b"]
        assert "Only the first 2 rate limits are shown" in response.text
        for text in ("b", "aa"):
            assert [row[0] for row in cell_texts(operator.get(LIMITS, {"from": text}).text)] == ["b", "c"]

    def test_a_search_for_a_rate_finds_no_secret(self, operator: Client, registry: Registry) -> None:
        job(concurrency=limit(1, by="token"))(pay)
        make_rated('rate:t token="hush-hush"', task=f"{pay.__module__}.pay", kwargs={"token": "hush-hush"})
        assert "hush-hush" not in operator.get(LIMITS).text
        assert cell_texts(operator.get(LIMITS, {"from": "rate:"}).text) == []
