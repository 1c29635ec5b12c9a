"""The notice of the open incidents, over every page of the admin."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.test import Client

from django_skipqueue.console.admin.notices import Notices
from django_skipqueue.models import Incident

from ...app.rows import make_job
from ..conftest import LIST

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("rule", "queue_name", "value", "said"),
    [
        ("oldest_waiting", "mail", 372.0, "A job in queue mail has waited for 6 min 12 s (limit: 5 min)."),
        ("oldest_waiting", "", 372.0, "A job has waited for 6 min 12 s (limit: 5 min)."),
        ("no_worker", "mail", 372.0, "No worker has served queue mail for 6 min 12 s (limit: 5 min)."),
        ("failed_share", "", 0.254, "25 % of the attempts of the last ten minutes have failed (limit: "),
        ("schedule_missed", "", 372.0, "A schedule should have fired 6 min 12 s ago (limit: 5 min)."),
        ("sequence_halted", "", 372.0, "A sequence has halted 6 min 12 s ago (limit: 5 min)."),
        ("recoveries", "", 312.0, "Jobs recovered from dead workers in the last ten minutes: 312 (limit: 300)."),
    ],
)
def test_an_open_incident_is_a_sentence_on_every_page(
    log_in: Callable[..., Client], rule: str, queue_name: str, value: float, said: str
) -> None:
    Incident.objects.create(rule=rule, queue_name=queue_name, value=value, threshold=300.0, raised_at=Now())
    assert said in log_in("view_job").get(LIST).content.decode()


def test_no_other_row_of_the_table_is_shown(log_in: Callable[..., Client]) -> None:
    Incident.objects.create(rule="", queue_name="")
    Incident.objects.create(rule="no_worker", queue_name="", threshold=60.0)
    Incident.objects.create(rule="recoveries", queue_name="", threshold=5.0, raised_at=Now(), over_at=Now())
    Incident.objects.create(rule="of a newer version", queue_name="", raised_at=Now())
    assert Notices.now().of_parts == ()
    assert "Alert since" not in log_in("view_job").get(LIST).content.decode()


def test_an_alert_has_one_full_stop(log_in: Callable[..., Client]) -> None:
    """The format of a time may end with one: "1:55 a.m."."""
    Incident.objects.create(rule="recoveries", value=9.0, threshold=5.0, raised_at=Now(), since="2026-03-01T01:55Z")
    text = " ".join(log_in("view_job").get(LIST).text.split())
    assert "Alert since March 1, 2026, 1:55 a.m.:</strong> Jobs recovered" in text
    assert ".." not in re.sub("<[^>]*>", "", text.partition("Alert since")[2].partition("</p>")[0])


def test_an_alert_of_all_queues_names_the_queue_whose_job_waits(operator: Client) -> None:
    Incident.objects.create(rule="oldest_waiting", value=420.0, threshold=300.0, raised_at=Now())
    for name, minutes in (("crm", 2), ("geo", 7), ("mail", 1)):
        make_job(queue_name=name, run_after=timedelta(minutes=-minutes))
    assert "A job in queue geo has waited for 7 min (limit: 5 min)." in operator.get(LIST).text
