"""The way of an outcome from Celery's pool to its main process, step by step."""

from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from celery.bootsteps import CLOSE, RUN
from celery.worker.request import Request

from django_skipqueue.carried import main_process
from django_skipqueue.carried.main_process import CarriedRequest, Outcomes
from django_skipqueue.carried.return_path import MOST_BYTES, Gate, ReturnPath
from django_skipqueue.relay import wire
from django_skipqueue.values.outcomes import COMPLETED, Outcome
from django_skipqueue.values.records import Attempt

from ..app.waiting import DEADLINE
from .celery_worker import a_job

ATTEMPT = Attempt(a_job(1, "jobs.noop"), COMPLETED, 0.0, 1.0, "w")
OUTCOME = wire.encode_outcome(ATTEMPT, "default")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What became of the message of a request."""
    found: list[str] = []
    monkeypatch.setattr(Request, "acknowledge", lambda _: found.append("acknowledged"))
    monkeypatch.setattr(Request, "reject", lambda _, **options: found.append(f"rejected {options}"))
    monkeypatch.setattr(CarriedRequest, "__init__", lambda _: None)
    return found


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> Outcomes:
    """Those of a worker whose broker confirms at once."""
    made = Outcomes()

    def post(outcome: wire.EncodedOutcome, confirmed: Any) -> None:
        told.append("sent")
        confirmed()

    monkeypatch.setattr(made, "post", post)
    monkeypatch.setattr(main_process, "outcomes", made)
    return made


def request(id: str = OUTCOME.id) -> Any:
    """A request of the class that Celery makes for a worker."""

    class Made(CarriedRequest):
        def on_success(self, failed__retval__runtime: Any, **_: Any) -> None:
            assert failed__retval__runtime[1] is None, "Celery sees no outcome"
            self.acknowledge()

    made = Made()
    made.id = id
    return made


def test_a_message_is_acknowledged_after_its_outcome(outcomes: Outcomes, told: list[str]) -> None:
    request().on_success((0, OUTCOME, 1.0))
    assert told == ["sent", "acknowledged"]


def test_a_job_without_an_outcome_is_acknowledged_at_once(outcomes: Outcomes, told: list[str]) -> None:
    outcomes.hold(ATTEMPT, "of another")
    request().acknowledge()
    assert told == ["acknowledged"]


def test_each_delivery_of_a_message_sends_an_outcome(outcomes: Outcomes, told: list[str]) -> None:
    """The connection of the first may be gone, and with it the acknowledgement."""
    for _ in range(2):
        outcomes.hold(ATTEMPT, "default")
    for _ in range(2):
        request().acknowledge()
    assert told == ["sent", "acknowledged"] * 2
    assert outcomes.take(OUTCOME.id) is None


def test_a_job_that_has_run_is_not_rejected(outcomes: Outcomes, told: list[str]) -> None:
    """If Celery fails after it."""
    outcomes.hold(ATTEMPT, "default")
    for _ in range(2):
        request().reject(requeue=True)
    assert told == ["sent", "acknowledged", "rejected {'requeue': True}"]


class Task:
    """A task of Celery's, which has an outcome when `gives` says so, and then fails as `failure` says."""

    def __init__(self) -> None:
        self.__trace__: Any = self.run
        self.path = ReturnPath(self, Gate())
        self.gives = True
        self.failure: Any = None

    def run(self, *_: object) -> tuple[Any, ...]:
        if self.gives:
            assert self.path.give(ATTEMPT, "default")
        if isinstance(self.failure, BaseException):
            raise self.failure
        return None, self.failure, 1.0, "None"


def traced(task: Task) -> tuple[Any, ...]:
    """What Celery gets to send to the main process."""
    found: tuple[Any, ...] = task.__dict__["__trace__"]("id", (), {}, {})
    return found


@pytest.mark.parametrize("failure", [None, "Celery failed after the job"])
def test_an_outcome_takes_the_place_of_what_celery_returns(failure: str | None) -> None:
    task = Task()
    task.failure = failure
    assert traced(task) == (None, None, 1.0, OUTCOME)
    task.gives = False
    assert traced(task) == (None, failure, 1.0, "None")


def test_an_outcome_of_an_earlier_task_is_not_returned() -> None:
    """Celery's own code has failed in between."""
    task = Task()
    task.failure = SystemExit()
    with pytest.raises(SystemExit):
        traced(task)
    task.gives, task.failure = False, None
    assert traced(task) == (None, None, 1.0, "None")


def test_an_outcome_is_not_given_if_celery_has_replaced_the_way_back() -> None:
    task = SimpleNamespace(__trace__=None)
    path = ReturnPath(task, Gate())
    task.__trace__ = None
    assert not path.give(ATTEMPT, "default")


def test_a_large_outcome_is_not_given() -> None:
    path = ReturnPath(SimpleNamespace(__trace__=None), Gate())
    large = ATTEMPT._replace(outcome=Outcome("completed", result=f'"{"x" * MOST_BYTES}"'))
    assert not path.give(large, "default")
    assert path.give(ATTEMPT, "default")


def test_a_cold_shutdown_does_not_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = Outcomes()
    outcomes._sender = SimpleNamespace(is_done=False)  # type: ignore[assignment]
    monkeypatch.setattr(main_process, "COLD_SECONDS", 0.1)
    monkeypatch.setattr("celery.worker.state.should_terminate", 0)
    waiting = Thread(target=outcomes._wait, daemon=True)
    waiting.start()
    assert waiting.is_alive()
    monkeypatch.setattr("celery.worker.state.should_terminate", True)
    waiting.join(DEADLINE)
    assert not waiting.is_alive()


def test_the_gate_is_shut_until_jobs_come_again() -> None:
    outcomes, gate = Outcomes(), Gate()
    path = ReturnPath(SimpleNamespace(__trace__=None), gate)
    worker = SimpleNamespace(blueprint=SimpleNamespace(state=RUN))
    outcomes.serve(worker, gate)
    outcomes._loop_ends(None)
    assert not path.give(ATTEMPT, "default")
    outcomes.received()
    assert path.give(ATTEMPT, "default")
    worker.blueprint.state = CLOSE
    outcomes._loop_ends(None)
    assert path.give(ATTEMPT, "default")
