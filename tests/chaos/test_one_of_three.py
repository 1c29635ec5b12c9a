"""The checks of the scenario `one-of-three` find each broken promise in forged records."""

import pytest

from .evidence import Fault
from .records_of_three import GRACE, Record, Records, violations

CALM_FROM, BROKEN_FROM, DOWN_AT, UP_AT, OVER = 0, 10, 20, 30, 40
SPEED = 10
INTERVAL = 1.0


def make_records() -> Records:
    """Records without a violation: `queue_1` is down for ten seconds, and the two other databases work meanwhile."""
    databases = {}
    for alias in ("queue_1", "queue_2", "queue_3"):
        seconds = [second for second in range(OVER) if alias != "queue_1" or not DOWN_AT <= second < UP_AT]
        databases[alias] = Record(
            promised={1, 2},
            statuses={1: "completed", 2: "completed", 3: "completed"},
            finished=[second + number / SPEED for second in seconds for number in range(SPEED)],
            ages=[(second, INTERVAL) for second in seconds],
        )
    return Records(
        databases=databases,
        faults=[Fault("stalled", "queue_1", DOWN_AT, UP_AT)],
        rate=SPEED,
        calm_from=CALM_FROM,
        broken_from=BROKEN_FROM,
        heartbeat_interval=INTERVAL,
        exit_code=0,
    )


def test_records_without_a_violation_pass() -> None:
    assert list(violations(make_records())) == []
    assert max(make_records().gaps()) < 0.2


def test_a_burst_of_jobs_before_the_fault_does_not_raise_the_wanted_speed() -> None:
    records = make_records()
    record = records.databases["queue_2"]
    record.finished = sorted([*record.finished, *[CALM_FROM + 1.0] * 500])
    assert list(violations(records)) == []


@pytest.mark.parametrize("status", ["queued", "running", "failed"])
def test_a_job_that_is_not_completed_is_lost(status: str) -> None:
    records = make_records()
    records.databases["queue_1"].statuses[3] = status
    assert list(violations(records)) == [f"job queue_1:3 is {status}"]


def test_a_job_without_a_row_is_lost() -> None:
    records = make_records()
    records.databases["queue_2"].promised.add(4)
    assert list(violations(records)) == ["job queue_2:4 is gone"]


def test_a_database_that_slows_down_while_another_is_down_is_found() -> None:
    records = make_records()
    record = records.databases["queue_2"]
    record.finished = [at for at in record.finished if not DOWN_AT <= at < DOWN_AT + 1]
    assert list(violations(records)) == ["stalled of queue_1: queue_2 finished 9 jobs/s, not 10"]
    assert max(records.gaps()) == pytest.approx(1.0)


def test_late_heartbeats_of_a_database_while_another_is_down_are_found() -> None:
    records = make_records()
    records.databases["queue_3"].ages.append((DOWN_AT + 1, INTERVAL + GRACE + 0.5))
    assert list(violations(records)) == ["stalled of queue_1: a heartbeat of queue_3 was 3.5 s old"]
    records.databases["queue_3"].ages = []
    assert list(violations(records)) == ["stalled of queue_1: a heartbeat of queue_3 was never seen"]


@pytest.mark.parametrize("code", [1, None])
def test_a_runworker_that_ends_with_an_error_is_found(code: int | None) -> None:
    records = make_records()
    records.exit_code = code
    assert list(violations(records)) == [f"after SIGTERM `runworker` ended with {code}"]
