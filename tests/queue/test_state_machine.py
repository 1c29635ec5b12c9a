"""A state machine of Hypothesis: three workers, a relay with its carrier and an operator call verbs in random order.

After each step, the rows of the jobs must equal a model in Python that makes only the legal changes.

The relay hands jobs over to the carrier, an external engine such as Celery. SKIPQUEUE_EXAMPLES=1000 runs a thousand
random sequences, and shortens a sequence that fails. Without the variable, the same 30 sequences run every time.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now
from django.test import override_settings
from django.utils.timezone import now
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from django_skipqueue import Discard, Retry, Snooze
from django_skipqueue.contrib.celery import rows as relay_sql
from django_skipqueue.contrib.celery.carrier import carrier_id
from django_skipqueue.contrib.celery.models import WorkerOfCelery
from django_skipqueue.contrib.celery.rows import Reclaim, recover_returned
from django_skipqueue.models import FINISHED, UNFINISHED, Job, Status, Worker
from django_skipqueue.queue.parameters import leases_as_values
from django_skipqueue.queue.queues import pause_queue, resume_queue
from django_skipqueue.queue.store import Store
from django_skipqueue.values.backoff import RetryPolicy
from django_skipqueue.values.outcomes import COMPLETED, Outcome, Settlement, error_entry
from django_skipqueue.values.records import EncodedCall, JobSpec, LeaseRef

from ..app.rows import settle_and_claim

store = Store("default")

WORKERS = {number: f"{number}:00000000000{number}" for number in ("1", "2", "3")} | {"relay": "relay:00000000000a"}
"""The ids of the workers and of the relay by their names. The relay holds a job until it has handed it over."""

RELAY = WORKERS["relay"]
CARRIER = carrier_id("celery")

carrier_store = Store("default")
carrier_store.guards, carrier_store.holder = relay_sql.GUARDS, {"carrier": "celery", "carrier_id": CARRIER}

LATER = timedelta(hours=1)
Item = TypeVar("Item")
EXAMPLES = int(os.environ.get("SKIPQUEUE_EXAMPLES", "0"))

workers = st.sampled_from(sorted(WORKERS.values()))
holders = st.sampled_from(sorted([*WORKERS.values(), CARRIER]))
limits = st.integers(1, 4)
job_choices = st.just(range(1_000)) | st.lists(st.integers(0, 5), min_size=1, max_size=4)
"""Positions of the chosen jobs or leases, counted from the newest; half of the time all of them."""
delays = st.sampled_from([timedelta(0), LATER])
keys = st.sampled_from([None, None, "a", "b"])
exceptions = st.sampled_from(
    [None, ValueError("no"), Retry(after=0), Retry(after=3600), Snooze(after=0), Snooze(after=3600), Discard("enough")]
)


@dataclass(frozen=True)
class JobModel:
    """A job as the model sees it."""

    max_attempts: int
    unique_key: str | None
    status: str
    attempts: int = 0
    lease: int = 0
    holder: str = ""
    due: bool = True
    failures: tuple[tuple[str, int], ...] = ()
    """The last ten errors: for each, the worker that died in the attempt (or an empty string), and its number."""
    deaths: tuple[str, ...] = ()
    """The workers that have died one after the other while they ran the job."""
    has_started: bool = False
    """Whether `started_at` is set. Sequences are ordered by it, and by the attempts."""

    def settled(self, outcome: Outcome) -> "JobModel":
        """The job after its worker has settled it."""
        due = outcome.delay <= 0
        status = outcome.status if outcome.status != "scheduled" else "queued" if due else "scheduled"
        job_model = self.failed() if outcome.error else self
        return replace(
            job_model, deaths=(), status=status, lease=self.lease + 1, attempts=self.attempts - outcome.refund, due=due
        )

    def released(self) -> "JobModel":
        """The job after its worker has released it."""
        return replace(self, status="queued", lease=self.lease + 1, attempts=self.attempts - 1, has_started=False)

    def recovered(self, *, is_returned: bool = False) -> "JobModel":
        """The job after its worker has died, or after its carrier has returned it, which counts as a death."""
        is_known = self.holder in self.deaths and not is_returned
        deaths = self.deaths if is_known else (*self.deaths, self.holder)
        job_is_deadly = len(deaths) >= 3 and self.holder != RELAY  # a relay holds many jobs: any of them may kill it
        if job_is_deadly or self.attempts >= self.max_attempts:
            status = "failed"
        else:
            status = "scheduled" if len(deaths) >= 2 else "queued"
        return replace(
            self.failed(self.holder), deaths=deaths, status=status, lease=self.lease + 1, due=status != "scheduled"
        )

    def failed(self, dead_worker: str = "") -> "JobModel":
        """The job with one more error: of a failed attempt, or of the death of its worker."""
        return replace(self, failures=(*self.failures, (dead_worker, self.attempts))[-10:])


class QueueMachine(RuleBasedStateMachine):
    """Three workers, a relay with its carrier, and an operator. They remember every lease that they ever had."""

    def __init__(self) -> None:
        super().__init__()
        Job.objects.all().delete()
        Worker.objects.all().delete()
        WorkerOfCelery.objects.all().delete()
        resume_queue(store, "default")
        self.is_paused = False
        self.model: dict[int, JobModel] = {}
        self.leases_given: dict[str, list[Job]] = {holder: [] for holder in [*WORKERS.values(), CARRIER]}
        store.heartbeat_workers([worker_row("celery", CARRIER) | {"is_external": True}])
        Worker.objects.update(heartbeat_at=Now() - LATER)  # so that all relays of the carrier count as gone
        self.heartbeat_all()

    # Enqueue

    @initialize()
    def begin_with_some_jobs(self) -> None:
        for key, max_attempts in (("a", 1), ("a", 1), (None, 10), ("b", 2), (None, 1)):
            self.enqueue(timedelta(0), key, max_attempts)
            if key == "a":
                self.discard([0])

    @rule(delay=delays, key=keys, max_attempts=st.integers(1, 5))
    def enqueue(self, delay: timedelta, key: str | None, max_attempts: int) -> None:
        job = Job.objects.enqueue("t", run_after=delay, unique_key=key, max_attempts=max_attempts)
        assert job.created is (key not in self.keys_of_unfinished())
        if job.created:
            self.add_to_model([job.pk], [key], delay, max_attempts)
        else:
            assert self.model[job.pk].unique_key == key

    @rule(delay=delays, wanted_keys=st.lists(keys, min_size=1, max_size=3))
    def enqueue_many(self, delay: timedelta, wanted_keys: list[str | None]) -> None:
        calls = [EncodedCall("[]", "{}").with_unique_key(key) for key in wanted_keys]
        ids = store.enqueue_many(JobSpec("t", run_after=delay), calls)
        key_by_new_id = {id: key for id, key in zip(ids, wanted_keys, strict=True) if id not in self.model}
        assert self.keys_of_unfinished().isdisjoint(key_by_new_id.values())
        assert len(key_by_new_id) == wanted_keys.count(None) + len({*wanted_keys} - {None} - self.keys_of_unfinished())
        self.add_to_model(list(key_by_new_id), list(key_by_new_id.values()), delay, 10)
        assert [self.model[id].unique_key for id in ids] == wanted_keys

    def add_to_model(self, ids: list[int], keys_of_jobs: list[str | None], delay: timedelta, max_attempts: int) -> None:
        for id, key in zip(ids, keys_of_jobs, strict=True):
            status = "scheduled" if delay else "queued"
            self.model[id] = JobModel(max_attempts, key, status, due=not delay)

    # Workers

    @rule(worker=workers, limit=limits)
    def claim(self, worker: str, limit: int) -> None:
        self.check_claimed(worker, limit, Job.objects.claim(queue_names=["default"], limit=limit, worker_id=worker))

    @rule(worker=workers, limit=limits, chosen=job_choices, error=exceptions)
    def settle_and_claim(self, worker: str, limit: int, chosen: Sequence[int], error: BaseException | None) -> None:
        settlements, expected = self.settlements_and_expected(worker, chosen, error)
        written_leases, claimed_jobs = settle_and_claim(
            settlements, queue_names=["default"], limit=limit, worker_id=worker
        )
        assert {id for id, _ in written_leases} == set(expected)
        self.model |= expected
        job_by_id = {job.pk: job for job in Job.objects.filter(pk__in=[job.id for job in claimed_jobs])}
        assert [(job.lease, job.attempt) for job in claimed_jobs] == [
            (job_by_id[job.id].lease, job_by_id[job.id].attempts) for job in claimed_jobs
        ]
        self.check_claimed(worker, limit, list(job_by_id.values()))

    def check_claimed(self, worker: str, limit: int, jobs: list[Job]) -> None:
        assert len(jobs) == (0 if self.is_paused else min(limit, len(self.with_status("queued"))))
        for job in jobs:
            model_before = self.model[job.pk]
            assert model_before.status == "queued"
            self.model[job.pk] = replace(
                model_before,
                status="running",
                lease=model_before.lease + 1,
                attempts=model_before.attempts + 1,
                holder=worker,
                has_started=True,
            )
        self.leases_given[worker] += jobs

    @rule(for_=st.sampled_from([None, LATER]))
    def pause(self, for_: timedelta | None) -> None:
        pause_queue(store, "default", for_=for_)
        self.is_paused = True

    @rule()
    def resume(self) -> None:
        assert resume_queue(store, "default") is self.is_paused
        self.is_paused = False

    @rule(worker=holders, chosen=job_choices, error=exceptions)
    def settle(self, worker: str, chosen: Sequence[int], error: BaseException | None) -> None:
        settlements, expected = self.settlements_and_expected(worker, chosen, error)
        assert store.settle(settlements) == set(expected)
        self.model |= expected

    def settlements_and_expected(
        self, worker: str, chosen: Sequence[int], error: BaseException | None
    ) -> tuple[list[Settlement], dict[int, JobModel]]:
        """Return a settlement for each chosen lease, and the expected rows of the jobs whose lease is still valid."""
        held = pick(self.leases_given[worker], chosen)
        settlements = [Settlement(job.pk, job.lease, outcome_after(job, error)) for job in held]
        return settlements, {
            id: self.model[id].settled(outcome)
            for id, lease, outcome, *_ in settlements
            if self.holds(worker, (id, lease))
        }

    @rule(worker=holders, chosen=job_choices)
    def release(self, worker: str, chosen: Sequence[int]) -> None:
        leases = {(job.pk, job.lease) for job in pick(self.leases_given[worker], chosen)}
        released_models = {id: self.model[id].released() for id, lease in leases if self.holds(worker, (id, lease))}
        assert store.release(leases) == set(released_models)
        self.clear_holder(released_models)

    @rule(worker=workers, chosen=job_choices)
    def release_orphans(self, worker: str, chosen: Sequence[int]) -> None:
        known = {job.pk for job in pick(self.leases_given[worker], chosen)}
        orphans = {id: self.model[id].released() for id in self.held_by(worker) - known}
        assert store.release_orphans(worker, known=known) == set(orphans)
        self.clear_holder(orphans)

    def clear_holder(self, released: dict[int, JobModel]) -> None:
        self.model |= {id: replace(job_model, holder="") for id, job_model in released.items()}

    @rule(worker=workers, chosen=job_choices)
    def heartbeat(self, worker: str, chosen: Sequence[int]) -> None:
        for job in pick(self.leases_given[worker], chosen):
            assert store.heartbeat_job((job.pk, job.lease)) is self.holds(worker, (job.pk, job.lease))

    # The relay and its carrier

    @rule(limit=limits, chosen=job_choices)
    def claim_and_hand_over(self, limit: int, chosen: Sequence[int]) -> None:
        """The relay claims jobs, and hands some of its jobs over because the carrier has confirmed them."""
        self.claim(RELAY, limit)
        self.hand_over(chosen)

    @rule(chosen=job_choices)
    def hand_over(self, chosen: Sequence[int]) -> None:
        """Hand over chosen jobs. A job whose lease has changed meanwhile is not handed over."""
        confirmed = pick(self.leases_given[RELAY], chosen)
        refs = [(job.pk, job.lease) for job in confirmed]
        moved = {ref for ref in refs if self.holds(RELAY, ref)}
        rows = store.rows(relay_sql.HAND_OVER, leases_as_values(refs) | {"carrier_id": CARRIER})
        assert set(rows) == moved
        self.model |= {id: replace(self.model[id], holder=CARRIER) for id, _ in moved}
        self.leases_given[CARRIER] += [job for job in confirmed if (job.pk, job.lease) in moved]
        self.leases_given[RELAY] = [job for job in self.leases_given[RELAY] if (job.pk, job.lease) not in moved]

    @rule(chosen=job_choices, first=exceptions, second=exceptions)
    def settle_and_claim_for_the_carrier(
        self, chosen: Sequence[int], first: BaseException | None, second: BaseException | None
    ) -> None:
        """The relay settles and claims twice: the broker has delivered the jobs twice, with different outcomes."""
        for error, limit in ((first, 2), (second, 1)):
            settlements, expected = self.settlements_and_expected(CARRIER, chosen, error)
            written_leases, claimed_jobs = settle_and_claim(
                settlements, store=carrier_store, queue_names=["default"], limit=limit, worker_id=RELAY
            )
            assert {id for id, _ in written_leases} == set(expected)
            self.model |= expected
            self.check_claimed(RELAY, limit, list(Job.objects.filter(pk__in=[job.id for job in claimed_jobs])))
        assert not expected, "only the first outcome is written"

    @rule(chosen=job_choices)
    def give_back_after_the_delivery_limit(self, chosen: Sequence[int]) -> None:
        refs = {(job.pk, job.lease) for job in pick(self.leases_given[CARRIER], chosen)}
        held_ids = [id for id, lease in refs if self.holds(CARRIER, (id, lease))]
        expected_models = {id: self.model[id].recovered(is_returned=True) for id in held_ids}
        assert recover_returned(carrier_store, sorted(refs)) == [], "no worker has begun the jobs"
        carrier_store.rows(relay_sql.NOTE_BEGUN, {**leases_as_values(refs), **carrier_store.holder})
        statuses = {job.id: job.status for job in recover_returned(carrier_store, sorted(refs))}
        assert statuses == {id: job_model.status for id, job_model in expected_models.items()}
        self.model |= expected_models

    @rule(times=st.integers(1, 3))
    def carry_and_give_back(self, times: int) -> None:
        """Hand jobs over to the carrier, and have the carrier return them, several times in a row."""
        for _ in range(times):
            self.admit(limit=4, chosen=range(1_000))
            self.claim_and_hand_over(limit=4, chosen=range(1_000))
            self.give_back_after_the_delivery_limit(range(1_000))

    @rule(limit=limits)
    def never_recover_from_the_carrier(self, limit: int) -> None:
        """The heartbeat of the carrier and the `locked_at` of its jobs are old, and no job is recovered."""
        jobs_of_carrier = Job.objects.filter(locked_by=CARRIER, status="running")
        jobs_of_carrier.update(locked_at=Now() - LATER, started_at=F("started_at") - LATER)
        self.recover_and_check(set(), limit)
        assert store.recover_without_worker(locked_before=now() + LATER, limit=limit) == []

    @rule()
    def reclaim(self) -> None:
        """Release all jobs of the carrier, as an operator does after the broker has lost its disk."""
        released_models = {id: self.model[id].released() for id in self.held_by(CARRIER)}
        assert sum(Reclaim.begin(store, "celery").run()) == len(released_models)
        self.clear_holder(released_models)

    # Supervisors

    @rule(limit=limits, chosen=job_choices)
    def admit(self, limit: int, chosen: Sequence[int]) -> None:
        """Admit jobs after a time in which some scheduled jobs become due."""
        ids_made_due = pick(sorted(self.with_status("scheduled")), chosen)
        Job.objects.filter(pk__in=ids_made_due).update(run_after=Now() - timedelta(seconds=1))
        self.model |= {id: replace(self.model[id], due=True) for id in ids_made_due}
        due_ids = {id for id in self.with_status("scheduled") if self.model[id].due}
        count = store.admit(limit=limit).by_queue.get("default", 0)
        assert count == min(limit, len(due_ids))
        admitted_ids = set(Job.objects.filter(pk__in=due_ids, status="queued").values_list("pk", flat=True))
        assert len(admitted_ids) == count
        self.model |= {id: replace(self.model[id], status="queued") for id in admitted_ids}

    @rule(worker=workers, limit=limits, chosen=job_choices | st.none())
    def recover_a_dead_worker(self, worker: str, limit: int, chosen: Sequence[int] | None) -> None:
        job_ids = None if chosen is None else pick(sorted(self.model), chosen)
        lost_ids = self.held_by(worker) if job_ids is None else self.held_by(worker) & set(job_ids)
        self.recover_and_check(lost_ids, limit, worker_ids=[worker], job_ids=job_ids)

    @rule(worker=workers, times=st.integers(1, 3))
    def claim_and_die(self, worker: str, times: int) -> None:
        """Have one worker claim and die several times in a row, then the other workers."""
        for dead_worker in [worker] * times + sorted(set(WORKERS.values()) - {worker}):
            self.admit(limit=4, chosen=range(1_000))
            self.claim(dead_worker, limit=4)
            self.recover_a_dead_worker(dead_worker, limit=4, chosen=None)

    @rule(worker=workers, limit=limits)
    def recover_a_silent_worker(self, worker: str, limit: int) -> None:
        Worker.objects.filter(pk=worker).update(heartbeat_at=Now() - LATER)
        Job.objects.running().update(locked_at=Now() - LATER, started_at=F("started_at") - LATER)
        try:
            self.recover_and_check(self.held_by(worker), limit)
        finally:
            self.heartbeat_all()

    def recover_and_check(self, lost_ids: set[int], limit: int, **options: Any) -> None:
        statuses = {job.id: job.status for job in store.recover(limit=limit, **options)}
        assert statuses.keys() <= lost_ids
        assert len(statuses) == min(limit, len(lost_ids))
        self.model |= {id: self.model[id].recovered() for id in statuses}
        assert statuses == {id: self.model[id].status for id in statuses}

    @rule(statuses=st.sets(st.sampled_from(FINISHED), min_size=1), limit=limits)
    def prune(self, statuses: set[Status], limit: int) -> None:
        retention = {status.value: 0 if status in statuses else None for status in FINISHED}
        expired_ids = {id for status in statuses for id in self.with_status(status)}
        with override_settings(SKIPQUEUE={"RETENTION": retention}):
            counts = store.prune(limit=limit)
        remaining_ids = set(Job.objects.values_list("pk", flat=True))
        deleted_ids = self.model.keys() - remaining_ids
        assert deleted_ids <= expired_ids
        assert len(deleted_ids) == min(limit, len(expired_ids))
        assert counts == Counter(self.model[id].status for id in deleted_ids)
        self.model = {id: job_model for id, job_model in self.model.items() if id in remaining_ids}

    # Operators

    @rule(chosen=job_choices)
    def retry(self, chosen: Sequence[int]) -> None:
        ids = pick(sorted(self.model), chosen)
        expected_models: dict[int, JobModel] = {}
        taken_keys = self.keys_of_unfinished()
        for id in sorted(ids, reverse=True):  # of several jobs with one key, the newest is retried
            job_model = self.model[id]
            if job_model.status in ("failed", "discarded") and job_model.unique_key not in taken_keys:
                expected_models[id] = replace(
                    job_model, deaths=(), status="queued", lease=job_model.lease + 1, attempts=0, due=True
                )
                taken_keys |= {job_model.unique_key} - {None}
        assert store.retry(ids).keys() == set(expected_models)
        self.model |= expected_models

    @rule(chosen=job_choices)
    def discard(self, chosen: Sequence[int]) -> None:
        ids = pick(sorted(self.model), chosen)
        expected = {
            id: replace(self.model[id], status="discarded", lease=self.model[id].lease + 1)
            for id in ids
            if self.model[id].status in ("scheduled", "queued")
        }
        assert store.discard(ids).keys() == set(expected)
        self.model |= expected

    @rule(chosen=job_choices)
    def cancel(self, chosen: Sequence[int]) -> None:
        """Cancel unfinished jobs. The outcomes of running jobs then come too late."""
        ids = pick(sorted(self.model), chosen)
        expected = {
            id: replace(self.model[id], status="discarded", lease=self.model[id].lease + 1)
            for id in ids
            if self.model[id].status in UNFINISHED
        }
        assert store.cancel(ids).keys() == set(expected)
        self.model |= expected

    # Questions about the model

    def with_status(self, status: str) -> set[int]:
        return {id for id, job_model in self.model.items() if job_model.status == status}

    def held_by(self, worker: str) -> set[int]:
        return {id for id in self.with_status("running") if self.model[id].holder == worker}

    def holds(self, worker: str, lease: LeaseRef) -> bool:
        return lease[0] in self.held_by(worker) and self.model[lease[0]].lease == lease[1]

    def keys_of_unfinished(self) -> set[str | None]:
        return {job_model.unique_key for job_model in self.model.values() if job_model.status in UNFINISHED} - {None}

    def heartbeat_all(self) -> None:
        store.heartbeat_workers(
            [worker_row(name, id) | ({"concurrency": 0} if id == RELAY else {}) for name, id in WORKERS.items()]
        )
        heartbeat_values = {
            "carrier": "celery",
            "carrier_id": CARRIER,
            "relay_id": RELAY,
            "is_reached": True,
            "refused": 0,
        }
        store.execute(relay_sql.HEARTBEAT, heartbeat_values)

    # The check after every step

    @invariant()
    def rows_are_those_of_the_model_and_promises_are_kept(self) -> None:
        jobs = list(Job.objects.all())
        assert {job.pk: model_of(job) for job in jobs} == {
            id: replace(job_model, due=True) for id, job_model in self.model.items()
        }
        for job in jobs:
            assert 0 <= job.attempts <= job.max_attempts, vars(job)
            assert job.attempts < job.max_attempts or job.status not in ("scheduled", "queued"), vars(job)
            assert (job.finished_at is not None) == (job.status in FINISHED), vars(job)
            assert (job.locked_at is not None) == (job.status == "running"), vars(job)
            assert len(job.errors) <= 10
        leases = {(job.pk, job.lease) for job in jobs}
        for worker, leases_given in self.leases_given.items():
            valid_leases = {(job.pk, job.lease) for job in leases_given} & leases
            assert valid_leases == {(id, self.model[id].lease) for id in self.held_by(worker)}, (
                "a job has one valid lease, and its holder has it"
            )
        assert Reclaim.begin(store, "celery").count() == len(self.held_by(CARRIER))
        held_keys = [job.unique_key for job in jobs if job.unique_key and job.status in UNFINISHED]
        assert len(held_keys) == len(set(held_keys))


def worker_row(name: str, id: str) -> dict[str, Any]:
    """The row that a worker writes for itself."""
    return {"id": id, "name": name, "hostname": "h", "pid": 1, "queues": [], "concurrency": 1}


def model_of(job: Job) -> JobModel:
    """The row as a `JobModel`, without its times."""
    failures = tuple(
        (entry["worker_id"] if entry["exception"].endswith("WorkerDied") else "", entry["attempt"])
        for entry in job.errors
    )
    return JobModel(
        job.max_attempts,
        job.unique_key,
        job.status,
        job.attempts,
        job.lease,
        job.locked_by,
        failures=failures,
        deaths=tuple(job.deaths or ()),
        has_started=job.started_at is not None,
    )


def pick(existing: list[Item], chosen: Sequence[int]) -> list[Item]:
    """Choose some of these items, each once."""
    return [existing[-1 - number] for number in sorted({*chosen}) if number < len(existing)]


def outcome_after(job: Job, error: BaseException | None) -> Outcome:
    """The outcome of an attempt that ended in this way."""
    if error is None:
        return COMPLETED
    entry = error_entry(error, attempt=job.attempts, worker="w", duration_ms=1.0)
    return RetryPolicy().decide(error, entry, attempt=job.attempts, max_attempts=job.max_attempts)


@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(600 + EXAMPLES)  # because shortening a sequence that fails takes minutes
def test_random_sequences_of_calls_change_jobs_only_as_the_model_allows() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")  # for thousands of fast commits
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=EXAMPLES or 30,
            stateful_step_count=50,
            phases=[Phase.generate, Phase.shrink] if EXAMPLES else [Phase.generate],
            derandomize=not EXAMPLES,
            print_blob=bool(EXAMPLES),
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    connection.close()
