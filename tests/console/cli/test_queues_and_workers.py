"""`skipqueue queues` and `skipqueue workers`: they list queues and workers, and ask a worker to restart or stop."""

import re
from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.models import Queue, WorkerRequest

from ...app import jobs
from ...app.carriers import CARRIERS, make_carried, make_carrier, make_relay
from ...app.rows import make_job, make_worker
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)


def queue_json(name: str) -> dict[str, Any]:
    return next(queue for queue in skipqueue("queues", "--json").objects if queue["queue"] == name)


def test_queues_are_listed_with_their_jobs_workers_and_limits(settings: Any) -> None:
    settings.SKIPQUEUE = {"QUEUES": {"mail": {"concurrency": 20, "rate": "50/s"}, "later": {"concurrency": None}}}
    make_job(queue_name="mail", run_after=timedelta(minutes=-5))
    make_worker(queues=["mail"], concurrency=8)
    Queue.limit("mail", 4)
    mail, later = queue_json("mail"), queue_json("later")
    assert (mail["queued"], mail["workers"], mail["slots"], mail["limit"], mail["start_rate"]) == (1, 1, 8, 4, "50/s")
    assert (later["queued"], later["limit"], later["is_paused"]) == (0, None, False)
    out = skipqueue("queues").out
    assert re.search(r"^queue +queued +oldest job +running .* jobs at once +rate limit +note$", out, re.MULTILINE)
    assert re.search(r"^mail +1 +5m0\ds .* 1 +4 +50/s$", out, re.MULTILINE)


def test_workers_are_listed_with_their_slots_and_running_jobs() -> None:
    worker = make_worker(name="web/1", hostname="web-1", pid=7, queues=["mail"], memory_mb=1234, jobs_done=5)
    make_worker(name="web/2", hostname="web-1", heartbeat=timedelta(minutes=-5))
    job = make_job("running", locked_by=worker.pk, locked_at=timedelta(seconds=-90))
    for _ in range(2):
        make_job("running", locked_by=worker.pk, task=jobs.anoop.name)
    first, second = skipqueue("workers", "--json").objects
    assert {name: first[name] for name in ("name", "id", "hostname", "pid", "queues", "slots")} == {
        "name": "web/1", "id": worker.pk, "hostname": "web-1", "pid": 7, "queues": ["mail"], "slots": 4,
    }  # fmt: skip
    assert (first["threads"], first["coroutines"], first["claimed_ahead"], first["memory_mb"]) == (1, 2, 0, 1234)
    assert (first["jobs"][0]["id"], first["state"], second["state"]) == (job.pk, "live", "stale")
    out = skipqueue("workers").out
    assert re.search(rf"^live +web/1 +mail +1/4 \+ 2/4 async +noop {job.pk} for 1m3\ds, .*1,234 MiB", out, re.MULTILINE)
    assert re.search(r"^stale +web/2 ", out, re.MULTILINE)


def test_a_relay_is_listed_and_a_carrier_is_not(settings: Any) -> None:
    settings.SKIPQUEUE = CARRIERS
    make_carrier()
    make_carried(locked_by=make_relay().pk)
    [result] = skipqueue("workers", "--json").objects
    assert result["name"] == "relay/1"
    assert re.search(r"relay/1 · relay of celery .* 1 on their way", skipqueue("workers").out)


def test_without_workers_the_command_says_how_to_start_one() -> None:
    result = skipqueue("workers")
    assert (result.code, result.out) == (Exit.NEGATIVE, "")
    assert "python manage.py runworker" in result.err


@pytest.mark.parametrize(
    ("verb", "expected_message"),
    [("restart", "The worker web/1 restarts once its jobs have ended."), ("stop", "The runworker of web/1 stops.")],
)
def test_a_request_names_a_worker_by_its_name_or_its_id(verb: str, expected_message: str) -> None:
    worker = make_worker(name="web/1")
    make_worker(name="web/1", heartbeat=timedelta(hours=-1))
    make_worker(name="web/2")
    for name in ("web/1", worker.pk):
        result = skipqueue("workers", verb, name)
        assert result.code == 0
        assert expected_message.replace("web/1", name) in result.err
    assert list(WorkerRequest.objects.values_list("worker_id", "request")) == [(worker.pk, verb)]
    assert f"{verb} requested" in skipqueue("workers").out
    assert {listed["requested"] for listed in skipqueue("workers", "--json").objects} == {verb, None}


def test_a_request_to_a_dead_or_unknown_worker_is_refused() -> None:
    make_worker(name="web/1")
    make_worker(name="web/2", heartbeat=timedelta(hours=-1))
    for name in ("web/2", "web/11"):
        result = skipqueue("workers", "stop", name)
        assert result.code == Exit.ERROR
        assert "Did you mean 'web/1'?" in result.err
    assert skipqueue("workers", "stop").code == Exit.USAGE
    assert not WorkerRequest.objects.exists()
