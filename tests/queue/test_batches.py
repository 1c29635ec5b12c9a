"""The values that one statement sends for many jobs, and the order in which jobs are locked and run."""

import json
import time

import pytest

from django_skipqueue.parts.unique.enqueue import in_key_order
from django_skipqueue.queue.parameters import calls_as_values, claim_values, in_claim_order, settlements_as_values
from django_skipqueue.values.outcomes import COMPLETED, Outcome, Settlement
from django_skipqueue.values.records import QUEUE_HEAD, ClaimedJob, EncodedCall, QueuePosition

JOB = ClaimedJob(
    id=1, lease=1, task="task", queue_name="default", args="[]", kwargs="{}", attempt=1, max_attempts=10,
    priority=0, run_after=9.0, locked_at=9.0, metadata="{}",
)  # fmt: skip


def test_a_batch_of_plain_completions_sends_only_ids_leases_and_times() -> None:
    values = settlements_as_values([Settlement(7, 1, COMPLETED), Settlement(9, 3, COMPLETED)])
    values_not_empty = {name: value for name, value in values.items() if value}
    assert values_not_empty == {
        "ids": "{7, 9}",
        "leases": "{1, 3}",
        "started": "{NULL, NULL}",
        "ended": "{NULL, NULL}",
    }


def test_the_times_of_attempts_are_sent_as_microseconds_before_now() -> None:
    now = time.monotonic()
    values = settlements_as_values(
        [
            Settlement(7, 1, COMPLETED, now - 3600, now - 60),
            Settlement(9, 3, COMPLETED),
            Settlement(9, 3, COMPLETED, now),
        ]
    )
    started, ended = (values[name].strip("{}").split(", ") for name in ("started", "ended"))
    assert int(started[0]) - int(ended[0]) == pytest.approx(3_540_000_000, abs=1)  # 3600 - 60 seconds
    assert 60_000_000 <= int(ended[0]) < 70_000_000  # a minute ago
    assert (started[1], ended[1:]) == ("NULL", ["NULL", "NULL"])
    assert 0 <= int(started[2]) < 10_000_000  # just now


def test_a_batch_sends_all_columns_unless_every_outcome_is_a_plain_completion() -> None:
    retry = Outcome("scheduled", delay=2, refund=1, last_error="no", error={"message": "ü"}, is_unknown=True)
    values = settlements_as_values(
        [Settlement(7, 1, COMPLETED), Settlement(8, 1, retry), Settlement(9, 1, Outcome("completed", result="[1]"))]
    )
    errors = values.pop("errors")
    assert values == {
        "ids": "{7, 8, 9}",
        "leases": "{1, 1, 1}",
        "started": "{NULL, NULL, NULL}",
        "ended": "{NULL, NULL, NULL}",
        "statuses": ["completed", "scheduled", "completed"],
        "delays": [0.0, 2.0, 0.0],
        "refunds": [0, 1, 0],
        "results": [None, None, "[1]"],
        "last_errors": [None, "no", None],
        "unknown": [False, True, False],
        "notes": [None, None, None],
    }
    assert [error and json.loads(error) for error in errors] == [None, {"message": "ü"}, None]


def test_a_claim_searches_a_queue_from_its_position_and_other_queues_from_the_front() -> None:
    values = claim_values(["mail", "default"], after={"default": QueuePosition(-5, 12.5, 80)}, limit=3, worker_id="w")
    assert values["queue_names"] == ["mail", "default"]
    assert list(zip(values["ranks"], values["run_afters"], values["ids"], strict=True)) == [
        tuple(QUEUE_HEAD),
        (-5, 12.5, 80),
    ]


def test_claimed_jobs_run_in_the_order_of_queues_then_priority_then_time_then_id() -> None:
    jobs = [
        JOB._replace(id=1, priority=9),
        JOB._replace(id=2, queue_name="mail"),
        JOB._replace(id=3, queue_name="mail", run_after=5.0),
        JOB._replace(id=4, queue_name="mail", run_after=6.0, priority=1),
        JOB._replace(id=5, queue_name="mail", run_after=5.0),
    ]
    assert [job.id for job in in_claim_order(jobs, ["mail", "default"])] == [4, 3, 5, 2, 1]


def test_calls_are_sent_in_the_order_of_their_unique_keys() -> None:
    calls = [
        EncodedCall("[1]", "{}", {"unique_key": "b"}),
        EncodedCall("[2]", "{}"),
        EncodedCall("[3]", "{}", {"unique_key": "a"}),
        EncodedCall("[4]", "{}"),
    ]
    assert calls_as_values(in_key_order(calls, last=False)) == {
        "args": "[2]\n[4]\n[3]\n[1]",
        "kwargs": "{}\n{}\n{}\n{}",
        "unique_keys": '{NULL,NULL,"a","b"}',
        "limit_keys": "{}",
        "limit_kind": None,
        "capacity": None,
        "rate_keys": "{}",
        "rate_interval": None,
        "rate_burst": None,
    }
