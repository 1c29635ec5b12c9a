"""Evidence made up step by step, for the tests of the invariants.

Invariant: `uneventful()` violates nothing; a test forges its violation into it.
"""

from typing import Any

from .evidence import URGENT, Change, Death, Entry, Evidence, Fault, Life, Line, Promise, Stop

DIED = "django_skipqueue.exceptions.WorkerDied: worker died: signal 9 (SIGKILL)"
RECOVERED = "job recovered task=tests.chaos.jobs.work id=3 attempt=1 worker=machine-1/1 claimed=00:00:00 now=queued"
GAVE_BACK = 'jobs released worker=machine-1/2 count=2 reason="the worker died before it began them"'


class Story:
    """Evidence made up step by step, as the witness would have written it. `time` is that of the next change."""

    def __init__(self) -> None:
        self.time = 100.0
        self.evidence = Evidence(
            processes={"victim": 10, "other": 11, "third": 12, "alone": 13},
            names={"victim": "machine-1/1", "other": "machine-1/2", "third": "machine-2/1", "alone": "machine-2/alone"},
            lives={pid: Life(f"machine-{1 + pid // 12}", 99.0, 999.0) for pid in (10, 11, 12, 13)},
            calm_from=100.0,
            broken_from=110.0,
            calm_again=130.0,
            load_until=145.0,
        )

    def defer(self, job: int, *, key: str | None = None, atomic: bool = False, priority: int = 0) -> None:
        self.evidence.promises.append(Promise(f"token {job}", job, True, "a task", priority))
        self.evidence.atomic |= {job} if atomic else set()
        self.evidence.urgent |= {job} if priority == URGENT else set()
        self.change(job, None, "queued", lease=0, attempts=0, unique_key=key)

    def claim(self, job: int, holder: str = "other") -> None:
        last = self.last(job)
        self.change(job, "queued", "running", lease=last.lease + 1, attempts=last.attempts + 1, holder=holder)

    def hand_over(self, job: int, holder: str = "celery:4b2c3e1d0f9a") -> None:
        """Have the row name a carrier."""
        self.change(job, "running", "running", holder=holder)

    def take_over(self, job: int, holder: str = "alone") -> None:
        """Have a process that runs one job alone take the job from the worker that has claimed it."""
        self.change(job, "running", "running", lease=self.last(job).lease + 1, holder=holder)

    def write(self, job: int, *what: str) -> None:
        for each in what:
            self.evidence.entries.append(Entry(job, self.last(job).lease, each, self.time))

    def settle(self, job: int, status: str = "completed", **values: Any) -> None:
        lease = self.last(job).lease
        self.change(job, "running", status, **{"lease": lease + 1, "ran_under": lease, **values})

    def recover(self, job: int, status: str = "queued") -> None:
        self.change(job, "running", status, lease=self.last(job).lease + 1, error=DIED)

    def prune(self, job: int) -> None:
        self.change(job, "discarded", None)
        self.evidence.statuses[job] = "discarded"

    def say(self, text: str) -> None:
        self.evidence.log.append(Line(self.time, "machine-1", text))

    def end(self, pid: int) -> None:
        """See a process for the last time."""
        self.evidence.lives[pid].last_seen, self.evidence.lives[pid].is_over = self.time, True

    def release(self, job: int) -> None:
        last = self.last(job)
        self.change(job, "running", "queued", lease=last.lease + 1, attempts=last.attempts - 1, holder="")

    def change(self, job: int, before: str | None, after: str | None, **values: Any) -> None:
        last = self.last(job) if before else None
        known = {
            "unique_key": last.unique_key if last else None,
            "lease": last.lease if last else 0,
            "attempts": last.attempts if last else 0,
            "holder": last.holder if last else "",
        }
        old = (last.lease, last.attempts, last.holder) if last else (None, None, None)
        self.evidence.changes.append(
            Change(
                **{
                    "seq": len(self.evidence.changes) + 1,
                    "at": self.time,
                    "job": job,
                    "before": before,
                    "after": after,
                    "lease_before": old[0],
                    "attempts_before": old[1],
                    "max_attempts": 3,
                    "holder_before": old[2],
                    "ran_under": None,
                    "error": None,
                    **known,
                    **values,
                }
            )
        )
        self.evidence.statuses[job] = after or ""
        self.time += 0.01

    def last(self, job: int) -> Change:
        return next(change for change in reversed(self.evidence.changes) if change.job == job)

    def fault(self, what: str = "worker killed", *, began: float, ended: float, **values: Any) -> Fault:
        fault = Fault(what, "machine-1", began, ended, **values)
        self.evidence.faults.append(fault)
        return fault

    def at(self, time: float) -> None:
        """The steady load up to this time: ten jobs a second, each with a number of its own."""
        while self.time < time:
            job, began = round(self.time * 10), self.time
            self.defer(job)
            self.claim(job)
            self.settle(job)
            self.time = began + 0.1


def uneventful() -> Story:
    """A worker dies with one job, a `runworker` stops, and all is as it should be."""
    story = Story()
    story.at(110)
    story.defer(1)
    story.claim(1)
    story.write(1, "begin", "end")
    story.settle(1)
    story.defer(2, atomic=True)
    story.claim(2)
    story.write(2, "effect")
    story.settle(2)
    story.defer(3)
    story.claim(3, "victim")
    story.write(3, "begin", "end")
    story.fault(began=story.time, ended=story.time, slows=False, deaths=[Death(10, story.time, alone=True)])
    story.end(10)
    story.time += 0.5
    story.recover(3)
    story.say(RECOVERED)
    story.say(GAVE_BACK)
    story.claim(3, "other")
    story.write(3, "begin", "end")
    story.settle(3)
    story.defer(10)
    for _ in range(2):
        story.claim(10, "victim")
        story.recover(10)
    story.claim(10, "third")
    story.take_over(10)
    story.write(10, "begin", "end")
    story.settle(10)
    story.end(13)
    for job in (4, 5):
        story.defer(job, key="the key")
        story.claim(job)
        story.settle(job)
    story.defer(9, priority=URGENT)
    story.claim(9)
    story.write(9, "begin", "end")
    story.settle(9, "discarded", error="ran under lease 1")
    story.prune(9)
    story.at(120)
    story.defer(6)
    story.claim(6, "third")
    stop = Stop(frozenset({12}), story.time, story.time + 1, 0)
    story.release(6)
    story.fault("SIGTERM", began=stop.began, ended=stop.ended, stops=[stop])
    story.end(12)
    story.claim(6)
    story.settle(6)
    story.at(146)
    return story
