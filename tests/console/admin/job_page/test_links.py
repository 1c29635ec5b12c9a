"""The links from a job's page to other systems, by the setting `LINKS`."""

from typing import Any

import pytest
from django.test import Client

from ....app.rows import make_job, state
from ..conftest import page

pytestmark = pytest.mark.django_db

EVENT = {"attempt": 1, "exception": "x.Y", "message": "no", "sentry_event_id": "a1b2", "worker": "w/1"}


def test_a_job_has_each_link_whose_fields_have_values(operator: Client, settings: Any) -> None:
    settings.SKIPQUEUE = {
        "LINKS": {
            "Logs": "https://logs.example/?q={job_id}&from={started_at_ms}",
            "Order": "https://shop.example/{metadata[order]}/",
            "Session": "https://shop.example/{metadata[token]}/",
        }
    }
    job = make_job("completed", metadata={"order": "a/7", "token": "s3cret-token"})
    text = operator.get(page("change", job.pk)).text
    attributes = 'target="_blank" rel="noopener noreferrer"'
    assert f'<a href="https://shop.example/a%2F7/" {attributes}>Order</a>' in text
    assert "s3cret-token" not in text, "a masked value is in no link"
    assert ">Logs<" not in text, "the job has no start"
    started = make_job("running", started_at=state(job)["finished_at"])
    milliseconds = round(started.started_at.timestamp() * 1000) if started.started_at else 0
    text = operator.get(page("change", started.pk)).text
    assert f'<a href="https://logs.example/?q={started.pk}&amp;from={milliseconds}" {attributes}>Logs</a>' in text


def test_in_a_link_the_current_time_stands_for_the_end_of_an_unfinished_job(operator: Client, settings: Any) -> None:
    settings.SKIPQUEUE = {"LINKS": {"Logs": "https://logs.example/?to={finished_at}"}}
    assert ">Logs</a>" in operator.get(page("change", make_job().pk)).text


def test_a_job_without_links_has_no_row_for_links(operator: Client) -> None:
    assert "<dt>Links</dt>" not in operator.get(page("change", make_job().pk)).text


@pytest.mark.parametrize("links", [{}, {"Sentry": "https://sentry.example/{sentry_event_id}/?w={worker}"}])
def test_an_attempt_shows_its_event_in_sentry(operator: Client, settings: Any, links: dict[str, str]) -> None:
    settings.SKIPQUEUE = {"LINKS": links}
    text = operator.get(page("change", make_job("failed", errors=[EVENT]).pk)).text
    assert "Sentry event a1b2" in text
    assert ('href="https://sentry.example/a1b2/?w=w%2F1"' in text) is bool(links)
    assert "<dt>Links</dt>" not in text
