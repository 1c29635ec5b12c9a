"""`skipqueue status`: the queues, workers and jobs at one moment."""

import re
import signal
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings
from django.utils.dateparse import parse_datetime

from django_skipqueue.console import counts
from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.models import Queue

from ...app.carriers import CARRIERS, make_carried, make_carrier, make_relay
from ...app.rows import make_job, make_worker
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)


def status_json() -> dict[str, Any]:
    [status] = skipqueue("status", "--json").objects
    return status


def test_each_queue_has_its_jobs_and_workers() -> None:
    make_job(queue_name="mail", run_after=timedelta(minutes=-5))
    make_job("running", queue_name="mail", locked_at=timedelta(seconds=-90))
    make_job("completed", queue_name="done")
    make_worker(queues=["mail"])
    make_worker(queues=["other"])
    make_worker(queues=["mail"], heartbeat=timedelta(hours=-1))
    [queue] = status_json()["queues"]
    assert {name: queue[name] for name in ("queue", "queued", "running", "workers", "is_paused")} == {
        "queue": "mail",
        "queued": 1,
        "running": 1,
        "workers": 1,
        "is_paused": False,
    }
    assert 300 <= queue["oldest_seconds"] < 330
    assert re.search(r"^mail +1 +5m0\ds +1 +1m3\ds +0 +1$", skipqueue("status").out, re.MULTILINE)


def test_jobs_that_no_worker_can_claim_yet_and_failed_jobs_are_counted() -> None:
    make_job("scheduled")
    make_job("scheduled", attempts=1)
    make_job("failed")
    assert "No job is queued or running, and none has ended lately." in skipqueue("status").out
    make_job("blocked")
    make_job("failed", finished_at=timedelta(hours=-2))
    count_by_state = {name: count["count"] for name, count in status_json()["jobs"].items()}
    assert count_by_state == {"scheduled": 1, "retrying": 1, "blocked": 1, "failed": 2, "failed_in_last_hour": 1}
    out = skipqueue("status").out
    assert "Jobs: 1 scheduled, 1 retrying, 1 blocked, 2 failed (1 in the last hour)." in out


def test_counts_end_at_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "MOST_JOBS_COUNTED", 2)
    for _ in range(4):
        make_job("failed")
    assert status_json()["jobs"]["failed"] == {"count": 2, "or_more": True}
    assert "more than 2 failed (more than 2 in the last hour)." in skipqueue("status").out


def test_a_number_that_may_be_higher_is_printed_with_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """If many jobs are scheduled, only the jobs that are due next are counted."""
    monkeypatch.setattr(counts, "MOST_JOBS_COUNTED", 3)
    for number in range(6):
        make_job("scheduled", attempts=number % 2)
    assert "Jobs: at least 2 scheduled, at least 2 retrying," in skipqueue("status").out


def test_late_workers_are_named() -> None:
    make_worker(name="web-1/1")
    make_worker(name="web-2/1", heartbeat=timedelta(seconds=-45))
    assert status_json()["workers"] == {"live": 1, "late": 1, "stale": 0}
    assert "Workers: 1 live, 1 late, 0 stale (web-2/1 late for 4" in skipqueue("status").out


def test_a_queue_without_a_worker_and_a_paused_queue_have_notes() -> None:
    make_job(queue_name="mail")
    Queue.pause("reports", for_=timedelta(hours=1), by="ann", reason="the disk is full")
    with override_settings(TIME_ZONE="Asia/Kathmandu"):
        out = skipqueue("status").out
    assert re.search(r"^mail .* 0 +no worker serves it$", out, re.MULTILINE)
    assert re.search(r"^reports .* paused until \d{4}-\S+ \S+ \+0545 by ann: the disk is full$", out, re.MULTILINE)


def test_names_with_escape_sequences_cannot_control_the_terminal() -> None:
    make_job(queue_name="\x1b[31mred")
    make_worker(name="\x1b]0;x\x07", heartbeat=timedelta(seconds=-45))
    Queue.pause("default", reason="\x9b2J")
    make_job()
    assert skipqueue("status").out.replace("\n", "").isprintable()


def test_watch_prints_the_status_again_until_ctrl_c(manage: Callable[..., Any]) -> None:
    process = manage("skipqueue", "status", "--watch", "0.2s")
    process.wait_for("Workers: 0 live", times=2)
    make_job(queue_name="mail")
    process.wait_for("no worker serves it")
    process.send(signal.SIGINT)
    assert process.wait() == 0
    assert "Traceback" not in process.log


def test_the_option_watch_needs_no_duration(manage: Callable[..., Any]) -> None:
    process = manage("skipqueue", "status", "--watch")
    process.wait_for("Workers: 0 live", times=2)
    process.send(signal.SIGINT)
    assert process.wait() == 0


def test_watch_redraws_the_screen_of_a_terminal(manage: Callable[..., Any]) -> None:
    make_job(queue_name="mail")
    process = manage("skipqueue", "status", "--watch", "0.2s", terminal=True)
    process.wait_for("\x1b[H\x1b[2J")
    assert "\x1b[31mno worker serves it\x1b[0m" in process.log
    process.type("\x03")
    assert process.wait() == 0


@pytest.mark.parametrize(("option", "environment"), [(["--no-color"], {}), ([], {"NO_COLOR": "1"})])
def test_colours_can_be_turned_off(manage: Callable[..., Any], option: list[str], environment: dict[str, str]) -> None:
    make_job(queue_name="mail")
    process = manage("skipqueue", "status", *option, environment=environment, terminal=True)
    process.wait_for("no worker serves it")
    assert process.wait() == 0
    assert "\x1b[3" not in process.log


def test_the_row_of_a_queue_says_that_its_workers_are_late() -> None:
    make_job(queue_name="mail")
    make_worker(queues=["mail"], heartbeat=timedelta(seconds=-40))
    assert re.search(r"^mail .* 1 +1 of its workers late$", skipqueue("status").out, re.MULTILINE)
    make_worker(queues=["mail"])
    assert re.search(r"^mail .* 2 +1 of its workers late$", skipqueue("status").out, re.MULTILINE)


class TestCarriers:
    @pytest.fixture(autouse=True)
    def carriers(self, settings: Any) -> None:
        settings.SKIPQUEUE = CARRIERS

    def test_each_carrier_has_a_line_and_a_json_object(self) -> None:
        assert status_json()["carriers"] == []
        make_carrier(refused=1_234)
        make_relay()
        oldest = make_carried(locked_at=timedelta(minutes=-5))
        make_carried()
        [carrier] = status_json()["carriers"]
        assert 300 <= carrier.pop("oldest_seconds") < 330
        assert 0 <= carrier.pop("heartbeat_age_seconds") < 30
        assert parse_datetime(carrier.pop("oldest_at")) == oldest.locked_at
        assert carrier == {
            "carrier": "celery",
            "queues": ["pdf"],
            "held": 2,
            "window": 2_000,
            "relays": 1,
            "is_reachable": True,
            "refused": 1_234,
        }
        expected_line = (
            "^Carrier celery has 2 of at most 2,000 jobs, the oldest for 5m..s; "
            "1 relay, broker reachable, 1,234 refused.$"
        )
        assert re.search(expected_line, skipqueue("status").out, re.MULTILINE)

    def test_without_a_relay_the_status_does_not_say_whether_the_broker_is_reachable(self) -> None:
        make_carrier()
        assert status_json()["carriers"][0]["is_reachable"] is None
        assert "Carrier celery has 0 of at most 2,000 jobs; no relay is alive." in skipqueue("status").out

    def test_a_relay_does_not_count_as_a_worker(self) -> None:
        make_carrier()
        make_relay()
        assert status_json()["workers"] == {"live": 0, "late": 0, "stale": 0}
        assert "Workers: 0 live, 0 late, 0 stale." in skipqueue("status").out

    def test_a_carried_queue_without_a_relay_has_a_note(self) -> None:
        make_worker(queues=[])
        make_job(queue_name="pdf")
        assert re.search(r"^pdf .*no relay of its carrier is alive$", skipqueue("status").out, re.MULTILINE)
        make_relay()
        assert "no relay of its carrier" not in skipqueue("status").out

    def test_show_says_that_a_carrier_has_the_job(self) -> None:
        make_carrier()
        job = make_carried()
        assert re.search(r"running, with celery since \d\d:\d\d:\d\d", skipqueue("show", job.pk).out)


def test_the_health_probe_counts_relays_and_not_carriers(settings: Any) -> None:
    settings.SKIPQUEUE = CARRIERS
    make_carrier(hostname=socket.gethostname())
    assert skipqueue("health").code == Exit.NEGATIVE
    assert skipqueue("health", "--name", "celery").code == Exit.NEGATIVE
    make_worker(hostname=socket.gethostname(), queues=[])
    assert skipqueue("health").code == 0
    assert skipqueue("health", "--queue", "pdf").code == Exit.NEGATIVE
    make_relay(hostname=socket.gethostname())
    assert skipqueue("health", "--queue", "pdf").code == 0
