"""Incidents: measured in a real database, announced once at their beginning and once at their end."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from django_skipqueue.models import Incident, Job, Queue, Schedule, Worker
from django_skipqueue.parts.alerts import watch as module
from django_skipqueue.parts.alerts.events import AlertOver, AlertRaised
from django_skipqueue.parts.alerts.settings import limits
from django_skipqueue.parts.alerts.watch import (
    CALM_SECONDS,
    FEWEST_ATTEMPTS,
    PATIENCE,
    WINDOW,
    Alert,
    WatchAlerts,
    check,
    confirm,
)
from django_skipqueue.parts.history.rollups import Counts, roll_up, rows_of_counts
from django_skipqueue.queue.store import Store
from django_skipqueue.values.records import NEVER

from ..app.carriers import CARRIERS, make_carrier, make_relay
from ..app.limit_rows import make_halted, make_keyed
from ..app.rows import make_job, make_worker
from ..app.sessions import Session
from ..schedules.rows import make_schedule

pytestmark = pytest.mark.django_db(transaction=True)

STORE = Store("default")

Given = dict[str, Any]


def announced(given: Given) -> list[Alert]:
    """What a check announces; it is confirmed."""
    found = check(STORE, limits(given))
    for alert in found:
        confirm(STORE, alert)
    return found


def later(seconds: float) -> None:
    """Let time pass for the incidents."""
    names = ("since", "raised_at", "calm_since", "over_at", "claimed_at")
    Incident.objects.update(**{name: F(name) - timedelta(seconds=seconds) for name in names})


def count(queue_name: str, ago: float = 0.0, **counts: Any) -> None:
    roll_up(STORE, list(rows_of_counts({(int((time.time() - ago) // 60), queue_name, "t"): Counts(**counts)})), [])


# Rules


def test_a_schedule_that_did_not_fire() -> None:
    make_schedule("late", due=100)
    make_schedule("paused", due=1000, paused_at=Now())
    make_schedule("gone", due=1000, source="code", retired_at=Now())
    assert announced({"schedule_missed": 120}) == []
    (event,) = announced({"schedule_missed": 90})
    assert (event.rule, event.queue_name, event.limit) == ("schedule_missed", "", 90)
    assert event.value == pytest.approx(100, abs=5)
    Schedule.objects.all().delete()
    announced({"schedule_missed": 90})
    later(CALM_SECONDS + 1)
    assert [type(event) for event in announced({"schedule_missed": 90})] == [AlertOver]


def test_a_sequence_that_has_halted() -> None:
    make_keyed("nobody waits", "failed", kind="halting", finished_at=timedelta(seconds=-1000))
    failed = make_halted("sequence:t", minutes=100 / 60)
    make_halted("sequence:u", minutes=1)
    assert announced({"sequence_halted": 120}) == []
    (event,) = announced({"sequence_halted": 90})
    assert (event.rule, event.queue_name, event.limit) == ("sequence_halted", "", 90)
    assert event.value == pytest.approx(100, abs=5)
    failed.delete()
    announced({"sequence_halted": 90})
    later(CALM_SECONDS + 1)
    assert [type(event) for event in announced({"sequence_halted": 90})] == [AlertOver]


def test_a_job_that_waits_too_long() -> None:
    make_job(queue_name="mail", run_after=timedelta(seconds=-100))
    assert announced({"oldest_waiting": 120}) == []
    (event,) = announced({"oldest_waiting": 90})
    assert isinstance(event, AlertRaised)
    assert (event.database, event.rule, event.queue_name, event.limit) == ("default", "oldest_waiting", "", 90)
    assert 100 <= event.value < 110
    assert Incident.objects.get(rule="oldest_waiting").since == event.since


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"mail": 60}, ["mail"]),
        ({"*": 60}, [""]),
        ({"*": 60, "mail": 60}, ["", "mail"]),
        ({"*": 60, "mail": 500, "reports": None}, []),
        ({"none": 60}, []),
    ],
)
def test_queues_have_limits_of_their_own(given: dict[str, float | None], expected: list[str]) -> None:
    for queue_name in ("mail", "reports"):
        make_job(queue_name=queue_name, run_after=timedelta(seconds=-100))
    assert sorted(event.queue_name for event in announced({"oldest_waiting": given})) == expected


def test_jobs_of_a_paused_queue_wait_on_purpose() -> None:
    make_job(queue_name="mail", run_after=timedelta(seconds=-100))
    Queue.pause("mail")
    assert announced({"oldest_waiting": {"*": 60, "mail": 60}}) == []


def test_no_worker_at_all_or_for_a_queue() -> None:
    given = {"no_worker": {"*": 60, "mail": 60}}
    make_worker(queues=["reports"])
    assert announced(given) == []
    later(61)
    assert [event.queue_name for event in announced(given)] == ["mail"]
    make_worker(queues=["mail"])
    assert announced(given) == []
    later(CALM_SECONDS + 1)
    assert [type(event) for event in announced(given)] == [AlertOver]


def test_a_carried_queue_has_a_worker_if_a_relay_serves_it(settings: Any) -> None:
    settings.SKIPQUEUE = CARRIERS
    given = {"no_worker": {"pdf": 60, "mail": 60}}
    make_worker(queues=[])
    make_carrier()
    announced(given)
    later(61)
    assert [event.queue_name for event in announced(given)] == ["pdf"], "a worker of all queues leaves it alone"
    make_relay()
    assert announced(given) == []
    later(CALM_SECONDS + 1)
    assert [event.queue_name for event in announced(given)] == ["pdf"], "it is over"


def test_neither_a_carrier_nor_a_relay_is_a_worker_that_is_alive(settings: Any) -> None:
    settings.SKIPQUEUE = CARRIERS
    make_carrier()
    make_relay()
    announced({"no_worker": 60})
    later(61)
    assert [event.queue_name for event in announced({"no_worker": 60})] == [""]


def test_workers_that_stopped_are_missed_after_the_limit_and_not_at_once() -> None:
    make_worker()
    assert announced({"no_worker": 60}) == []
    Worker.objects.all().delete()
    assert announced({"no_worker": 60}) == []
    later(61)
    (event,) = announced({"no_worker": 60})
    assert 61 <= event.value < 70


def test_a_restart_of_all_workers_is_no_incident() -> None:
    assert announced({"no_worker": 60}) == []
    later(50)
    make_worker()
    assert announced({"no_worker": 60}) == []
    Worker.objects.all().delete()
    assert announced({"no_worker": 60}) == []
    later(50)
    assert announced({"no_worker": 60}) == []


def test_the_last_heartbeat_of_a_worker_that_died_is_the_beginning() -> None:
    make_worker(heartbeat=timedelta(seconds=-90))
    (event,) = announced({"no_worker": 60})
    assert 90 <= event.value < 100


def test_many_attempts_that_failed() -> None:
    count("mail", completed=FEWEST_ATTEMPTS - 5, retried=3, failed=2)
    assert announced({"failed_share": 0.5}) == []
    (event,) = announced({"failed_share": 0.2})
    assert event.value == pytest.approx(5 / FEWEST_ATTEMPTS)


def test_a_few_attempts_say_nothing() -> None:
    count("mail", failed=FEWEST_ATTEMPTS - 1)
    count("mail", ago=WINDOW + 120, failed=100)
    assert announced({"failed_share": 0.2}) == []


def test_the_others_are_all_queues_without_a_limit_of_their_own() -> None:
    count("mail", failed=100, recovered=7)
    count("reports", completed=100, recovered=2)
    assert announced({"failed_share": {"*": 0.4, "mail": None}, "recoveries": {"*": 3, "mail": 8}}) == []
    events = announced({"failed_share": {"*": 0.4}, "recoveries": {"*": 3, "mail": 7}})
    assert [(event.rule, event.queue_name) for event in events if event.rule == "failed_share"] == [
        ("failed_share", "")
    ]
    assert [event.value for event in events if event.queue_name == "mail"] == [7]


# Once


def test_an_incident_is_announced_once_at_its_beginning_and_once_at_its_end() -> None:
    given = {"oldest_waiting": 60}
    job = make_job(run_after=timedelta(seconds=-100))
    assert [type(event) for event in announced(given)] == [AlertRaised]
    for _ in range(3):
        later(100)
        assert announced(given) == []
    Job.objects.filter(pk=job.pk).delete()
    assert announced(given) == []
    later(CALM_SECONDS + 1)
    (event,) = announced(given)
    assert isinstance(event, AlertOver)
    assert (event.over_at - event.since).total_seconds() > 300
    assert event.value >= 100
    assert announced(given) == []
    assert not Incident.objects.exclude(rule="").exists()


def test_a_value_that_swings_about_the_limit_is_one_incident() -> None:
    given = {"recoveries": 10}
    count("mail", recovered=12)
    assert len(announced(given)) == 1
    assert announced({"recoveries": 13}) == [], "near the limit"
    later(CALM_SECONDS + 1)
    assert announced({"recoveries": 13}) == []
    assert announced({"recoveries": 100}) == [], "calm"
    later(CALM_SECONDS - 5)
    assert announced({"recoveries": 100}) == [], "not for long enough"
    assert announced(given) == [], "exceeded again"
    assert announced({"recoveries": 100}) == []
    later(CALM_SECONDS - 5)
    assert announced({"recoveries": 100}) == [], "calm since the last time only"
    later(10)
    assert [type(event) for event in announced({"recoveries": 100})] == [AlertOver]


def test_an_incident_is_over_when_its_limit_is_removed() -> None:
    make_job(run_after=timedelta(seconds=-100))
    announced({"oldest_waiting": 60})
    assert announced({"recoveries": 5}) == []
    later(CALM_SECONDS + 1)
    assert [type(event) for event in announced({"recoveries": 5})] == [AlertOver]


def test_many_processes_at_once_announce_it_once(session: Callable[[], Session]) -> None:
    make_job(run_after=timedelta(seconds=-100))
    sessions = [session() for _ in range(6)]
    start = threading.Barrier(len(sessions))

    def together() -> list[Alert]:
        start.wait(10)
        return check(STORE, limits({"oldest_waiting": 60}))

    found = [each.start(together) for each in sessions]
    assert [len(each.result(20)) for each in found].count(1) == 1
    assert sum(len(each.result()) for each in found) == 1


def test_who_dies_before_it_confirms_is_replaced() -> None:
    make_job(run_after=timedelta(seconds=-100))
    given = limits({"oldest_waiting": 60})
    assert len(check(STORE, given)) == 1
    assert check(STORE, given) == []
    later(PATIENCE + 1)
    assert len(check(STORE, given)) == 1, "somebody else announces it"
    assert check(STORE, given) == []


def test_an_end_that_comes_before_the_beginning_was_announced_follows_it() -> None:
    job = make_job(run_after=timedelta(seconds=-100))
    given = {"oldest_waiting": 60}
    assert len(check(STORE, limits(given))) == 1
    Job.objects.filter(pk=job.pk).delete()
    check(STORE, limits(given))
    later(max(CALM_SECONDS, PATIENCE) + 1)
    assert [type(event) for event in announced(given)] == [AlertRaised]
    assert [type(event) for event in announced(given)] == [AlertOver]


# The service of supervisors


class Watched:
    """A supervisor's service, and what it has sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.is_delivered = True
        self.service = WatchAlerts(Store("default", send=self.sent.append), delivered=lambda: self.is_delivered)

    def run(self) -> None:
        self.service.run(time.monotonic())


def test_one_supervisor_of_all_checks(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SKIPQUEUE = {"ALERTS": {"oldest_waiting": 60}}
    make_job(run_after=timedelta(seconds=-100))
    checked: list[Any] = []

    def note(*given: Any) -> list[Alert]:
        checked.append(given)
        return []

    monkeypatch.setattr("django_skipqueue.parts.alerts.watch.check", note)
    for each in (Watched(), Watched(), Watched()):
        each.run()
    assert len(checked) == 1
    later(30)
    Watched().run()
    assert len(checked) == 2


def test_it_confirms_when_the_sinks_have_handled_it(settings: Any) -> None:
    settings.SKIPQUEUE = {"ALERTS": {"oldest_waiting": 60}}
    make_job(run_after=timedelta(seconds=-100))
    one = Watched()
    one.is_delivered = False
    one.run()
    one.run()
    assert len(one.sent) == 1
    assert not Incident.objects.get(rule="oldest_waiting").is_announced
    one.is_delivered = True
    one.run()
    assert Incident.objects.get(rule="oldest_waiting").is_announced
    assert Incident.objects.open().count() == 1


def test_without_limits_it_forgets_and_never_runs_again(settings: Any) -> None:
    make_job(run_after=timedelta(seconds=-100))
    announced({"oldest_waiting": 60})
    settings.SKIPQUEUE = {"ALERTS": {"webhook": "https://example.com"}}
    one = Watched()
    one.run()
    assert one.service.due_at == NEVER
    assert not Incident.objects.exists()
    assert one.sent == []


def test_a_check_reads_no_whole_table(django_assert_max_num_queries: Any) -> None:
    make_job(run_after=timedelta(seconds=-100))
    every_rule = {"oldest_waiting": 60, "no_worker": 60, "failed_share": 0.5, "recoveries": 5}
    with django_assert_max_num_queries(14) as queries:
        module.check(STORE, limits(every_rule))
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        try:
            for query in queries.captured_queries:
                if "skipqueue_job" in query["sql"] or "skipqueue_rollup" in query["sql"]:
                    cursor.execute(f"EXPLAIN {query['sql'].removeprefix('EXPLAIN (FORMAT JSON) ')}")
                    assert "Seq Scan on skipqueue_job" not in str(cursor.fetchall())
        finally:
            cursor.execute("RESET enable_seqscan")
