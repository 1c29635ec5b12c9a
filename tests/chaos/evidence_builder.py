"""Builds evidence step by step, for the tests of the invariants.

Invariant: the evidence of `without_violations()` violates no invariant; a test adds its violation.
"""

from typing import Any

from .evidence import URGENT, Change, Death, Entry, Evidence, Fault, Life, Line, Promise, Stop

DEATH_ERROR = "django_skipqueue.exceptions.WorkerDied: worker died: signal 9 (SIGKILL)"
RECOVERY_LOG_LINE = (
    "job recovered task=tests.chaos.jobs.work id=3 attempt=1 worker=machine-1/1 claimed=00:00:00 now=queued"
)
RELEASE_LOG_LINE = 'jobs released worker=machine-1/2 count=2 reason="the worker died before it began them"'


VICTIM_PID, OTHER_PID, THIRD_PID, ALONE_PID = 10, 11, 12, 13
"""The process ids of the workers `victim`, `other` and `third`, and of a process that runs one job alone."""


class EvidenceBuilder:
    """Builds evidence step by step, as the witness would record it. `time` is the time of the next change."""

    def __init__(self) -> None:
        self.time = 100.0
        self.evidence = Evidence(
            processes={"victim": VICTIM_PID, "other": OTHER_PID, "third": THIRD_PID, "alone": ALONE_PID},
            names={"victim": "machine-1/1", "other": "machine-1/2", "third": "machine-2/1", "alone": "machine-2/alone"},
            lives={
                VICTIM_PID: Life("machine-1", first_seen=99.0, last_seen=999.0),
                OTHER_PID: Life("machine-1", first_seen=99.0, last_seen=999.0),
                THIRD_PID: Life("machine-2", first_seen=99.0, last_seen=999.0),
                ALONE_PID: Life("machine-2", first_seen=99.0, last_seen=999.0),
            },
            calm_from=100.0,
            broken_from=110.0,
            calm_again=130.0,
            load_until=145.0,
        )

    def defer(self, job: int, *, key: str | None = None, atomic: bool = False, priority: int = 0) -> None:
        self.evidence.promises.append(Promise(f"token {job}", job, created=True, task="a task", priority=priority))
        self.evidence.atomic |= {job} if atomic else set()
        self.evidence.urgent |= {job} if priority == URGENT else set()
        self.change(job, None, "queued", lease=0, attempts=0, unique_key=key)

    def claim(self, job: int, holder: str = "other") -> None:
        last_change = self.last_change(job)
        self.change(
            job, "queued", "running", lease=last_change.lease + 1, attempts=last_change.attempts + 1, holder=holder
        )

    def hand_over(self, job: int, holder: str = "celery:4b2c3e1d0f9a") -> None:
        """Add the change by which a relay hands the job over to a carrier."""
        self.change(job, "running", "running", holder=holder)

    def take_over(self, job: int, holder: str = "alone") -> None:
        """Have a process that runs one job alone take the job from the worker that has claimed it."""
        self.change(job, "running", "running", lease=self.last_change(job).lease + 1, holder=holder)

    def write_entries(self, job: int, *what: str) -> None:
        for kind in what:
            self.evidence.entries.append(Entry(job, self.last_change(job).lease, kind, self.time))

    def settle(self, job: int, status: str = "completed", **values: Any) -> None:
        lease = self.last_change(job).lease
        self.change(job, "running", status, **{"lease": lease + 1, "ran_under": lease, **values})

    def recover(self, job: int, status: str = "queued") -> None:
        self.change(job, "running", status, lease=self.last_change(job).lease + 1, error=DEATH_ERROR)

    def prune(self, job: int) -> None:
        self.change(job, "discarded", None)
        self.evidence.statuses[job] = "discarded"

    def add_log_line(self, text: str) -> None:
        self.evidence.log.append(Line(self.time, "machine-1", text))

    def end_process(self, pid: int) -> None:
        """Let a process end now, as the census would see it."""
        self.evidence.lives[pid].last_seen, self.evidence.lives[pid].is_over = self.time, True

    def release(self, job: int) -> None:
        last_change = self.last_change(job)
        self.change(job, "running", "queued", lease=last_change.lease + 1, attempts=last_change.attempts - 1, holder="")

    def change(self, job: int, before: str | None, after: str | None, **values: Any) -> None:
        last_change = self.last_change(job) if before else None
        unchanged_values = {
            "unique_key": last_change.unique_key if last_change else None,
            "lease": last_change.lease if last_change else 0,
            "attempts": last_change.attempts if last_change else 0,
            "holder": last_change.holder if last_change else "",
        }
        self.evidence.changes.append(
            Change(
                **{
                    "seq": len(self.evidence.changes) + 1,
                    "at": self.time,
                    "job": job,
                    "before": before,
                    "after": after,
                    "lease_before": last_change and last_change.lease,
                    "attempts_before": last_change and last_change.attempts,
                    "max_attempts": 3,
                    "holder_before": last_change and last_change.holder,
                    "ran_under": None,
                    "error": None,
                    **unchanged_values,
                    **values,
                }
            )
        )
        self.evidence.statuses[job] = after or ""
        self.time += 0.01

    def last_change(self, job: int) -> Change:
        return next(change for change in reversed(self.evidence.changes) if change.job == job)

    def add_fault(self, what: str = "worker killed", *, began: float, ended: float, **values: Any) -> Fault:
        fault = Fault(what, "machine-1", began, ended, **values)
        self.evidence.faults.append(fault)
        return fault

    def run_steady_load_until(self, time: float) -> None:
        """Add a steady load up to this time: ten completed jobs a second, each with a new number."""
        while self.time < time:
            job, began = round(self.time * 10), self.time
            self.defer(job)
            self.claim(job)
            self.settle(job)
            self.time = began + 0.1


def without_violations() -> EvidenceBuilder:
    """Legal evidence of a steady load, a worker that dies, a job taken over and a `runworker` that stops."""
    builder = EvidenceBuilder()
    builder.run_steady_load_until(110)
    builder.defer(1)
    builder.claim(1)
    builder.write_entries(1, "begin", "end")
    builder.settle(1)
    builder.defer(2, atomic=True)
    builder.claim(2)
    builder.write_entries(2, "effect")
    builder.settle(2)
    builder.defer(3)
    builder.claim(3, "victim")
    builder.write_entries(3, "begin", "end")
    death = Death(VICTIM_PID, builder.time, alone=True)
    builder.add_fault(began=builder.time, ended=builder.time, slows=False, deaths=[death])
    builder.end_process(VICTIM_PID)
    builder.time += 0.5
    builder.recover(3)
    builder.add_log_line(RECOVERY_LOG_LINE)
    builder.add_log_line(RELEASE_LOG_LINE)
    builder.claim(3, "other")
    builder.write_entries(3, "begin", "end")
    builder.settle(3)
    builder.defer(10)
    for _ in range(2):
        builder.claim(10, "victim")
        builder.recover(10)
    builder.claim(10, "third")
    builder.take_over(10)
    builder.write_entries(10, "begin", "end")
    builder.settle(10)
    builder.end_process(ALONE_PID)
    for job in (4, 5):
        builder.defer(job, key="the key")
        builder.claim(job)
        builder.settle(job)
    builder.defer(9, priority=URGENT)
    builder.claim(9)
    builder.write_entries(9, "begin", "end")
    builder.settle(9, "discarded", error="ran under lease 1")
    builder.prune(9)
    builder.run_steady_load_until(120)
    builder.defer(6)
    builder.claim(6, "third")
    stop = Stop(frozenset({THIRD_PID}), began=builder.time, ended=builder.time + 1, code=0)
    builder.release(6)
    builder.add_fault("SIGTERM", began=stop.began, ended=stop.ended, stops=[stop])
    builder.end_process(THIRD_PID)
    builder.claim(6)
    builder.settle(6)
    builder.run_steady_load_until(146)
    return builder
