"""The rate of a queue in the admin: its button, its form and its column."""

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_skipqueue.console.queues_and_workers import queue_states
from django_skipqueue.models import Queue

from ....app.rows import make_job
from ..conftest import QUEUES, messages_of

pytestmark = pytest.mark.django_db


def queue_names() -> list[str]:
    return [queue.name for queue in queue_states()]


def post_rate(client: Client, **answers: Any) -> Any:
    return client.post(f"{QUEUES}rate/?queue=mail", {"rate": "own", "own": "", **answers}, follow=True)


@pytest.fixture
def _rate_in_settings(settings: Any) -> None:
    """Give the queue `mail` a rate in the settings."""
    settings.SKIPQUEUE = {"QUEUES": {"mail": {"rate": "20/s"}, "later": {"rate": None}}}


@pytest.mark.parametrize(
    ("answers", "stored", "expected_message"),
    [
        ({"own": "100/m"}, 0.6, "Jobs of the queue “mail” that may start: 100/m."),
        ({"rate": "none", "own": "7/s"}, 0.0, "Jobs of the queue “mail” that may start: any number of jobs."),
        ({"rate": "settings"}, None, "The queue “mail” uses the rate from the settings again."),
    ],
)
@pytest.mark.usefixtures("_rate_in_settings")
def test_a_queue_gets_a_rate(
    operator: Client, answers: dict[str, str], stored: float | None, expected_message: str
) -> None:
    Queue.rate("mail", "5/s")
    response = post_rate(operator, **answers)
    assert messages_of(response) == [expected_message]
    assert Queue.objects.get().rate_interval == stored
    assert LogEntry.objects.get().get_change_message() == expected_message


@pytest.mark.parametrize("answers", [{}, {"rate": "7"}, {"own": "fast"}, {"own": "10001/s"}, {"own": "1" * 21}])
@pytest.mark.usefixtures("_rate_in_settings")
def test_the_form_of_a_rate_asks_again_after_an_invalid_rate(operator: Client, answers: dict[str, str]) -> None:
    assert "errorlist" in post_rate(operator, **answers).text
    assert not Queue.objects.exists()


def test_a_queue_whose_jobs_have_no_rate_key_cannot_get_a_rate(operator: Client) -> None:
    make_job(queue_name="mail")
    text = operator.get(QUEUES).text
    assert "rate/?queue" not in text
    assert "column-start-rate" not in text
    assert "first give the queue a rate in SKIPQUEUE[&quot;QUEUES&quot;]" in post_rate(operator, own="3/s").text
    assert not Queue.objects.exists()


@pytest.mark.usefixtures("_rate_in_settings")
def test_the_form_begins_with_the_rate_in_effect(operator: Client) -> None:
    assert {"mail", "later"} <= set(queue_names())
    address = f"{QUEUES}rate/?queue=mail"
    text = operator.get(QUEUES).text
    assert address in text
    assert '<td class="field-start-rate" data-title="Rate limit">20/s</td>' in text
    assert '<option value="settings" selected>as in the settings: 20/s</option>' in operator.get(address).text
    Queue.rate("mail", "4/m")
    assert '<option value="own" selected>' in operator.get(address).text
    assert 'value="4/m"' in operator.get(address).text
    assert "in the settings: 20/s" in operator.get(QUEUES).text
    Queue.rate("mail", None)
    assert '<option value="none" selected>' in operator.get(address).text
