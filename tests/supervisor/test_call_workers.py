"""`CallWorkers` in a supervisor: which of its idle worker processes it wakes (calls) when queues get jobs.

A call is a message through a pipe. A worker answers by a claim. If it claims too late, other workers are called.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace

import pytest

from django_skipqueue.supervisor.calls import ANSWER_PAUSE, CallWorkers, Contention
from django_skipqueue.supervisor.processes import CALL_PATIENCE_SECONDS, MOST_CALLS, WorkerProcess
from django_skipqueue.values.records import NEVER, serves
from django_skipqueue.worker.protocol import CALL, COMMANDS_SIZE, SharedCounts, decode_commands

MakeWorkers = Callable[..., list["FakeWorker"]]


class Clock:
    """A clock that stands still."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


clock = Clock()


@pytest.fixture(autouse=True)
def _stop_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_skipqueue.supervisor.calls.time", SimpleNamespace(monotonic=clock))


class FakeWorker:
    """Acts as the worker behind a `WorkerProcess`: reads the calls, and reports its free slots."""

    def __init__(self, number: int, slots: int) -> None:
        self.process = WorkerProcess(f"m/{number}", 4)
        self.process.id, self.process.pid = f"m/{number}:0", os.getpid()
        self.process.shared = self.shared = SharedCounts()
        self.lifeline, self.process.lifeline = os.pipe()
        os.set_blocking(self.lifeline, False)
        self.claimed = 0
        self.slots = slots
        self.sleep()

    def read_calls(self) -> list[str]:
        """Read the calls that were sent since the last read. Returns the names of the queues in them."""
        try:
            commands = list(decode_commands(os.read(self.lifeline, COMMANDS_SIZE)))
        except BlockingIOError:
            return []
        assert {kind for kind, _ in commands} == {CALL}
        for _ in commands:
            self.shared.read_call()
        return [queue_name for _, queue_name in commands]

    def sleep(self, *, jobs_it_would_claim: int | None = None) -> None:
        self.shared.offer(
            slots=self.slots,
            room=self.slots if jobs_it_would_claim is None else jobs_it_would_claim,
            claimed=self.claimed,
        )

    def claim_and_sleep(self, *, claimed: int, slots: int) -> list[str]:
        """Read the calls, claim this many jobs, and sleep with this many free slots. Returns the called queues."""
        queue_names = self.read_calls()
        self.shared.begin_claim()
        self.shared.end_claim()
        self.claimed += claimed
        self.slots = slots
        self.sleep()
        return queue_names


@pytest.fixture
def make_workers() -> Iterator[MakeWorkers]:
    """Make one worker for each given number of free slots."""
    created_workers: list[FakeWorker] = []

    def workers_with_slots(*slots: int) -> list[FakeWorker]:
        created_workers.extend(FakeWorker(number, free_slots) for number, free_slots in enumerate(slots, 1))
        return created_workers

    yield workers_with_slots
    for worker in created_workers:
        os.close(worker.lifeline)
        os.close(worker.process.lifeline)


def make_service(workers: list[FakeWorker], *queue_names: str, contention: Contention | None = None) -> CallWorkers:
    processes = [worker.process for worker in workers]
    return CallWorkers(processes, partial(serves, queue_names, external={"carried"}), contention or Contention())


def review(service: CallWorkers) -> None:
    """Run the service at the time when it checks whether its calls were answered."""
    assert service.due_at < NEVER
    clock.now += 1.01 * CALL_PATIENCE_SECONDS
    service.run(clock.now)


def read_calls_of(workers: list[FakeWorker]) -> list[list[str]]:
    return [worker.read_calls() for worker in workers]


def test_one_job_calls_only_the_worker_with_the_most_free_slots(make_workers: MakeWorkers) -> None:
    workers = make_workers(2, 4, 0)
    make_service(workers).notified(["mail"])
    assert read_calls_of(workers) == [[], ["mail"], []]


def test_no_worker_is_called_for_a_paused_queue(make_workers: MakeWorkers) -> None:
    (worker,) = make_workers(2)
    service = make_service([worker])
    service.queues_found([], ["mail"])
    service.notified(["mail,3", "other"])
    assert worker.read_calls() == ["other"]
    service.queues_found([], [])
    service.notified(["mail"])
    assert worker.read_calls() == ["mail"]


def test_an_external_queue_calls_only_workers_that_serve_it_by_name(make_workers: MakeWorkers) -> None:
    (worker,) = make_workers(2)
    service = make_service([worker])
    service.notified(["carried,3"])
    service.queues_found(["carried"], [])
    assert worker.read_calls() == []
    service = make_service([worker], "carried")
    service.notified(["carried"])
    assert worker.read_calls() == ["carried"]


def test_three_jobs_call_two_workers_with_two_free_slots_each(make_workers: MakeWorkers) -> None:
    workers = make_workers(2, 2, 2)
    make_service(workers).notified(["mail,3"])
    assert read_calls_of(workers) == [["mail"], ["mail"], []]


def test_a_process_that_could_not_be_started_is_not_called(make_workers: MakeWorkers) -> None:
    (worker,) = make_workers(1)
    CallWorkers([WorkerProcess("m/2", 4), worker.process], lambda _: True, Contention()).notified(["mail,9"])
    assert worker.read_calls() == ["mail"]


def test_a_second_job_calls_another_worker_if_the_first_worker_is_full(make_workers: MakeWorkers) -> None:
    workers = make_workers(1, 1)
    service = make_service(workers)
    service.notified(["mail"])
    service.notified(["mail"])
    assert read_calls_of(workers) == [["mail"], ["mail"]]


def test_two_jobs_make_one_call_and_the_third_job_calls_another_worker(make_workers: MakeWorkers) -> None:
    workers = make_workers(2, 1)
    service = make_service(workers)
    for _ in range(3):
        service.notified(["mail"])
    assert read_calls_of(workers) == [["mail"], ["mail"]], (
        "two jobs for the first worker, in one call, and one job for the second worker"
    )


def test_if_jobs_exceed_the_free_slots_a_full_worker_is_called_too_but_only_once(make_workers: MakeWorkers) -> None:
    workers = make_workers(0, 1)
    service = make_service(workers)
    for _ in range(3):
        service.notified(["mail,9"])
        workers[1].claim_and_sleep(claimed=0, slots=1)
    assert workers[0].read_calls() == ["mail"]


def test_a_full_worker_is_called_again_once_it_has_begun_a_claim(make_workers: MakeWorkers) -> None:
    """The claim may have begun before the job was enqueued."""
    (worker,) = make_workers(0)
    service = make_service([worker])
    service.notified(["mail"])
    assert worker.read_calls() == ["mail"]
    service.notified(["mail"])
    assert worker.read_calls() == [], "the worker has not yet answered the first call by a claim"
    worker.shared.begin_claim()
    service.notified(["mail"])
    assert worker.read_calls() == ["mail"]


def test_no_worker_is_called_for_a_queue_that_none_serves_or_for_a_probe(make_workers: MakeWorkers) -> None:
    workers = make_workers(4)
    service = make_service(workers, "mail")
    service.notified(["other", "", ",a probe"])
    service.queues_found(["other"], [])
    assert (read_calls_of(workers), service.due_at) == ([[]], NEVER)
    service = make_service(workers)
    service.notified(["", ",a probe", "carried"])
    service.queues_found(["carried"], [])
    assert (read_calls_of(workers), service.due_at) == ([[]], NEVER)


class TestLaterCheckOfACall:
    """Some time after a call, the service checks whether the worker has answered by a claim, and what it has found."""

    def test_an_answered_call_needs_no_further_call(self, make_workers: MakeWorkers) -> None:
        workers = make_workers(4, 4)
        service = make_service(workers)
        service.notified(["mail"])
        workers[0].claim_and_sleep(claimed=1, slots=3)
        review(service)
        assert (read_calls_of(workers), service.due_at) == ([[], []], NEVER)

    def test_if_a_worker_does_not_answer_the_others_are_called_one_after_the_other(
        self, make_workers: MakeWorkers
    ) -> None:
        workers = make_workers(4, 3, 2, 0)
        service = make_service(workers)
        service.notified(["mail"])
        assert read_calls_of(workers) == [["mail"], [], [], []]
        review(service)
        assert read_calls_of(workers) == [[], ["mail"], [], []]
        review(service)
        assert read_calls_of(workers) == [[], [], ["mail"], []]
        review(service)
        assert read_calls_of(workers) == [[], [], [], ["mail"]]
        assert service.due_at == NEVER

    def test_a_worker_that_does_not_answer_is_not_the_first_to_be_called_again(self, make_workers: MakeWorkers) -> None:
        workers = make_workers(4, 3)
        service = make_service(workers)
        service.notified(["mail"])
        read_calls_of(workers)
        review(service)
        workers[1].claim_and_sleep(claimed=1, slots=3)
        review(service)
        service.notified(["mail"])
        assert read_calls_of(workers) == [[], ["mail"]]

    def test_steady_notifications_do_not_delay_the_call_to_another_worker(self, make_workers: MakeWorkers) -> None:
        workers = make_workers(10, 5)
        service = make_service(workers)
        for _ in range(5):
            service.notified(["mail"])
            clock.now += CALL_PATIENCE_SECONDS / 2
        service.run(clock.now)
        assert workers[1].read_calls() == ["mail"]

    def test_workers_that_do_not_answer_are_called_only_once_for_300_jobs(self, make_workers: MakeWorkers) -> None:
        workers = make_workers(10, 10)
        service = make_service(workers)
        for _ in range(300):
            service.notified(["mail"])
            clock.now += 1.01 * CALL_PATIENCE_SECONDS
            service.run(clock.now)
        assert read_calls_of(workers) == [["mail"], ["mail"]]
        assert service.due_at == NEVER

    def test_another_worker_is_called_if_the_called_worker_has_ended(self, make_workers: MakeWorkers) -> None:
        workers = make_workers(4, 3)
        service = make_service(workers)
        service.notified(["mail"])
        workers[0].process.pid = 0  # as if the process had ended
        review(service)
        assert read_calls_of(workers)[1] == ["mail"]

    def test_a_claim_by_the_successor_of_a_called_worker_does_not_count_as_an_answer(
        self, make_workers: MakeWorkers
    ) -> None:
        workers = make_workers(4, 3)
        service = make_service(workers)
        service.notified(["mail"])
        workers[0].process.id = "m/1:1"  # the id of the next process
        workers[0].claim_and_sleep(claimed=1, slots=3)
        review(service)
        assert read_calls_of(workers)[1] == ["mail"]

    def test_another_worker_is_called_if_the_claim_filled_the_called_worker(self, make_workers: MakeWorkers) -> None:
        """The full worker may have claimed from another queue, so that the jobs of this queue still wait."""
        workers = make_workers(1, 1, 1)
        service = make_service(workers)
        service.notified(["mail,2"])
        workers[0].claim_and_sleep(claimed=1, slots=0)
        workers[1].claim_and_sleep(claimed=0, slots=1)
        review(service)
        assert read_calls_of(workers) == [[], [], ["mail"]]

    def test_after_a_claim_of_the_only_job_no_other_worker_is_called(self, make_workers: MakeWorkers) -> None:
        workers = make_workers(1, 1)
        service = make_service(workers)
        service.notified(["mail"])
        workers[0].claim_and_sleep(claimed=1, slots=0)
        review(service)
        assert (read_calls_of(workers), service.due_at) == ([[], []], NEVER)


class TestQueuesFoundByASearch:
    """The supervisor has searched the database: it knows which queues have jobs, but not how many."""

    def test_all_workers_that_could_claim_are_called(self, make_workers: MakeWorkers) -> None:
        workers = make_workers(4, 0, 0, 1)
        workers[1].sleep(jobs_it_would_claim=7)
        make_service(workers).queues_found(["mail"], [])
        assert read_calls_of(workers) == [["mail"], ["mail"], [], ["mail"]]

    def test_many_queues_found_become_one_call_without_a_queue_name(self, make_workers: MakeWorkers) -> None:
        (worker,) = make_workers(4)
        make_service([worker]).queues_found([f"queue {number}" for number in range(MOST_CALLS + 1)], [])
        assert worker.read_calls() == [""]


def test_many_queues_notified_at_once_become_one_call_without_a_queue_name(make_workers: MakeWorkers) -> None:
    (worker,) = make_workers(4)
    make_service([worker]).notified([f"queue {number}" for number in range(MOST_CALLS + 1)])
    assert worker.read_calls() == [""]


def test_calls_beyond_the_size_of_the_pipe_become_one_call_without_a_queue_name(make_workers: MakeWorkers) -> None:
    (worker,) = make_workers(0)
    names = [f"{'q' * 990}{number:010}" for number in range(50)]
    for name in names:
        worker.process.call(name, 1, clock.now)
    assert worker.read_calls() == [*names[:MOST_CALLS], ""]
    worker.claim_and_sleep(claimed=0, slots=0)
    assert worker.process.call("mail", 1, clock.now) == MOST_CALLS + 2, "the number of the call"
    assert worker.read_calls() == ["mail"]


class TestContention:
    """Several machines get each notification. A machine that often finds no job waits before it calls its workers."""

    @pytest.fixture
    def worker(self, make_workers: MakeWorkers) -> FakeWorker:
        (worker,) = make_workers(4)
        return worker

    @pytest.fixture
    def service(self, worker: FakeWorker) -> CallWorkers:
        contention = Contention()
        contention.see(["other/1:0"])
        return make_service([worker], contention=contention)

    def test_a_machine_that_found_no_job_delays_its_next_call(self, worker: FakeWorker, service: CallWorkers) -> None:
        service.notified(["mail"])
        assert worker.claim_and_sleep(claimed=0, slots=4) == ["mail"]
        service.contention.phase = service.due_at % ANSWER_PAUSE
        review(service)
        service.notified(["mail"])
        assert service.due_at == pytest.approx(clock.now + ANSWER_PAUSE, abs=ANSWER_PAUSE)
        assert worker.read_calls() == []
        service.notified(["mail"])
        assert worker.read_calls() == ["mail"], "two jobs: there is one for each machine"

    def test_a_machine_that_got_a_job_makes_its_next_call_at_once(
        self, worker: FakeWorker, service: CallWorkers
    ) -> None:
        for _ in range(3):
            service.notified(["mail"])
            assert worker.claim_and_sleep(claimed=1, slots=4) == ["mail"]
            review(service)

    def test_a_claim_without_a_call_ends_the_delay(self, worker: FakeWorker, service: CallWorkers) -> None:
        """A busy worker claims when it settles, so it may claim a job before the notification arrives."""
        service.contention.quiet_until = clock.now + 3600  # the machine would wait for an hour
        worker.claimed += 1
        worker.sleep()
        service.notified(["mail"])
        assert worker.read_calls() == ["mail"]

    def test_a_queue_found_by_a_search_calls_a_worker_at_once(self, worker: FakeWorker, service: CallWorkers) -> None:
        service.contention.quiet_until = clock.now + 3600
        service.queues_found(["mail"], [])
        assert worker.read_calls() == ["mail"]

    def test_ten_delayed_notifications_become_one_call(self, worker: FakeWorker, service: CallWorkers) -> None:
        service.contention.machines = 50
        service.contention.quiet_until = clock.now + ANSWER_PAUSE
        for _ in range(10):
            service.notified(["mail"])
        assert worker.read_calls() == []
        service.run(service.due_at)
        assert worker.read_calls() == ["mail"]
