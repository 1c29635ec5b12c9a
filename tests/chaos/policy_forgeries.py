"""Functions that each add a violation of limits, rates, fairness, batches or chains to evidence without violations.

Invariant: each function violates one invariant, which `test_policies` names beside it. Some violate none, and say so.
"""

from typing import Any

from .evidence import BatchChange, Need
from .evidence_builder import EvidenceBuilder

CONCURRENCY = {"limit_key": "a limit", "limit_kind": "concurrency", "capacity": 1}
HALTING = {"limit_key": "a sequence", "limit_kind": "halting", "capacity": 1}
SEQUENCE = {"limit_key": "a sequence", "limit_kind": "sequence", "capacity": 1}
RATE = {"rate_key": "a rate", "rate_interval": 1.0, "rate_burst": 2}
FAIR = {"limit_key": "a tenant", "limit_kind": "fair", "capacity": 2}
CALLS = frozenset(("on_success", "on_failure", "on_finish"))


# Limits and sequences


def admit_too_many(builder: EvidenceBuilder) -> None:
    """Queue two jobs at once under a limit of one."""
    for job in (7, 8):
        builder.change(job, None, "blocked", **CONCURRENCY)
        builder.change(job, "blocked", "queued", **CONCURRENCY)


def overtake_a_retry(builder: EvidenceBuilder) -> None:
    """Job 8 of a sequence is queued while job 7, which comes before it, waits for its retry."""
    for job in (7, 8):
        builder.change(job, None, "blocked", **SEQUENCE)
    builder.change(7, "blocked", "queued", **SEQUENCE)
    builder.change(7, "queued", "running", lease=1, attempts=1, **SEQUENCE)
    builder.change(7, "running", "scheduled", lease=2, error="ran under lease 1", has_begun=True, **SEQUENCE)
    builder.change(8, "blocked", "queued", **SEQUENCE)


def overtake_a_failure(builder: EvidenceBuilder) -> None:
    """Job 8 is queued after job 7 has failed, which halts the sequence."""
    for job in (7, 8):
        builder.change(job, None, "blocked", **HALTING)
    builder.change(7, "blocked", "queued", **HALTING)
    builder.change(7, "queued", "running", lease=1, attempts=1, **HALTING)
    builder.change(7, "running", "failed", lease=2, error="ran under lease 1", **HALTING)
    builder.change(8, "blocked", "queued", **HALTING)


def discard_a_failure(builder: EvidenceBuilder) -> None:
    """An operator discards the failed job, and the sequence runs its next job: no violation."""
    for job in (7, 8):
        builder.change(job, None, "blocked", **HALTING)
    builder.change(7, "blocked", "queued", **HALTING)
    builder.change(7, "queued", "running", lease=1, attempts=1, **HALTING)
    builder.change(7, "running", "failed", lease=2, error="ran under lease 1", **HALTING)
    builder.change(7, "failed", "discarded", lease=3, **HALTING)
    builder.change(8, "blocked", "queued", **HALTING)


def begin_out_of_order_after_a_release(builder: EvidenceBuilder) -> None:
    """Job 7 is claimed, and released before it begins; job 8 begins before it."""
    builder.change(7, None, "queued", **SEQUENCE)
    builder.change(7, "queued", "running", lease=1, attempts=1, **SEQUENCE)
    builder.change(7, "running", "queued", lease=2, attempts=0, holder="", **SEQUENCE)
    builder.change(7, "queued", "scheduled", **SEQUENCE)
    builder.change(8, None, "queued", **SEQUENCE)
    builder.change(8, "queued", "running", lease=1, attempts=1, **SEQUENCE)
    builder.change(8, "running", "completed", lease=2, **SEQUENCE)
    builder.change(7, "scheduled", "queued", **SEQUENCE)
    builder.change(7, "queued", "running", lease=3, attempts=1, **SEQUENCE)


def begin_out_of_order(builder: EvidenceBuilder) -> None:
    """Job 8 of a sequence begins before job 7."""
    for job in (8, 7):
        builder.change(job, None, "queued", **SEQUENCE)
        builder.change(job, "queued", "running", lease=1, attempts=1, **SEQUENCE)
        builder.change(job, "running", "completed", lease=2, **SEQUENCE)


# Rates: one token a second, and a burst of two


def admit(builder: EvidenceBuilder, job: int, seconds: float, *, clock_error: float = 0.0, claim: bool = True) -> None:
    """Admit a job at the time 200 + `seconds`, while the clock of PostgreSQL is wrong by `clock_error` seconds."""
    builder.time = 200 + seconds
    builder.change(job, None, "blocked", **RATE)
    builder.time = 200 + seconds
    builder.change(job, "blocked", "queued", statement_began=builder.time + clock_error, **RATE)
    if claim:
        builder.change(job, "queued", "running", lease=1, attempts=1, **RATE)


def keep_to_the_rate(builder: EvidenceBuilder) -> None:
    """Admit each job when the rate has a token: no violation."""
    for job, seconds in enumerate((0, 0, 1, 2, 5, 5.5, 6), start=20):
        admit(builder, job, seconds)


def keep_to_the_rate_with_another_clock(builder: EvidenceBuilder) -> None:
    """The clock goes forward, which allows a burst, and back, which empties the bucket: no violation."""
    seconds_and_clock_errors = ((0, 0), (0, 0), (1, 8), (1, 8), (2, 8), (4, 0), (5, 0), (5.1, 8), (5.1, 8), (6.1, 0))
    for job, (seconds, clock_error) in enumerate(seconds_and_clock_errors, start=20):
        admit(builder, job, seconds, clock_error=clock_error)


def release_with_a_token(builder: EvidenceBuilder) -> None:
    """A released job keeps its token, beside a burst of other jobs: no violation."""
    admit(builder, 20, 0)
    builder.change(20, "running", "queued", lease=2, attempts=0, holder="", **RATE)
    admit(builder, 21, 0, claim=False)
    admit(builder, 22, 1, claim=False)


def exceed_the_burst(builder: EvidenceBuilder) -> None:
    """Admit three jobs at the same time, although the rate allows a burst of two."""
    for job in (20, 21, 22):
        admit(builder, job, 0)


def exceed_the_rate(builder: EvidenceBuilder) -> None:
    """Admit a fourth job after 1.8 seconds, although two tokens at first and one a second allow it after two."""
    for job, seconds in enumerate((0, 0, 1, 1.8), start=20):
        admit(builder, job, seconds)


def exceed_the_rate_after_the_clock(builder: EvidenceBuilder) -> None:
    """Admit two jobs after the clock was set back, although the key then has no token."""
    for job, (seconds, clock_error) in enumerate(((0, 8), (0, 8), (0.1, 0), (0.1, 0)), start=20):
        admit(builder, job, seconds, clock_error=clock_error)


def queue_more_than_the_burst(builder: EvidenceBuilder) -> None:
    for job, seconds in enumerate((0, 1, 2), start=20):
        admit(builder, job, seconds, claim=False)


def queue_without_a_token(builder: EvidenceBuilder) -> None:
    builder.change(20, None, "scheduled", **RATE)
    builder.change(20, "scheduled", "queued", **RATE)


def claim_without_a_token(builder: EvidenceBuilder) -> None:
    """A job that waits for its rate begins without a token."""
    builder.change(20, None, "blocked", **RATE)
    builder.change(20, "blocked", "running", **RATE)


def retry_without_a_token(builder: EvidenceBuilder) -> None:
    admit(builder, 20, 0)
    builder.change(20, "running", "queued", lease=2, error="ran under lease 1", holder="other", **RATE)


# Fairness


def queue_as_many_as_running_jobs_allow(builder: EvidenceBuilder) -> None:
    for job in range(20, 28):
        builder.change(job, None, "blocked", **FAIR)
    for job in (20, 21):
        builder.change(job, "blocked", "queued", **FAIR)
        builder.change(job, "queued", "running", lease=1, attempts=1, **FAIR)
    for job in range(22, 28):
        builder.change(job, "blocked", "queued", **FAIR)


def queue_more_than_the_capacity(builder: EvidenceBuilder) -> None:
    for job in (20, 21, 22):
        builder.change(job, None, "blocked", **FAIR)
        builder.change(job, "blocked", "queued", **FAIR)


# Batches


class Batches:
    """Adds changes of an outer batch 1, and of an inner batch 2."""

    def __init__(self, builder: EvidenceBuilder) -> None:
        self.builder = builder

    def add_change(self, batch: int, what: str) -> None:
        """Add a change of a batch."""
        parent = 1 if batch == 2 else None
        seq = len(self.builder.evidence.changes) + 1
        self.builder.change(99, None, "queued")  # takes the number `seq`, so that no change of a job has it
        self.builder.evidence.changes[-1] = self.builder.evidence.changes[-1]._replace(job=0)
        self.builder.evidence.batches.append(BatchChange(seq, batch, parent, what, CALLS))

    def run_job(self, job: int, status: str = "completed", **values: Any) -> None:
        self.builder.change(job, None, "queued", **values)
        self.builder.change(job, "queued", "running", lease=1, attempts=1, **values)
        self.builder.change(job, "running", status, lease=2, **values)

    def call_back(self, batch: int, *names: str, first_job_id: int) -> None:
        """Run these callbacks of a batch as jobs, whose ids begin with `first_job_id`."""
        for job, name in enumerate(names, start=first_job_id):
            self.run_job(job, batch=batch, calls_back=name)


def finish_a_batch(builder: EvidenceBuilder) -> None:
    """Finish a batch with an inner batch, one of whose jobs fails: no violation."""
    batches = Batches(builder)
    batches.add_change(1, "open")
    batches.add_change(2, "open")
    batches.run_job(20, batch=1)
    batches.run_job(21, "failed", batch=2)
    batches.add_change(2, "finish")
    batches.call_back(2, "on_failure", "on_finish", first_job_id=30)
    batches.add_change(1, "finish")
    batches.call_back(1, "on_failure", "on_finish", first_job_id=40)


def leave_a_batch_open(builder: EvidenceBuilder) -> None:
    batches = Batches(builder)
    batches.add_change(1, "open")
    batches.run_job(20, batch=1)


def finish_a_batch_twice(builder: EvidenceBuilder) -> None:
    finish_a_batch(builder)
    Batches(builder).add_change(1, "finish")


def finish_a_batch_too_soon(builder: EvidenceBuilder) -> None:
    batches = Batches(builder)
    batches.add_change(1, "open")
    builder.change(20, None, "queued", batch=1)
    batches.add_change(1, "finish")
    batches.call_back(1, "on_success", "on_finish", first_job_id=40)


def finish_a_batch_before_the_one_in_it(builder: EvidenceBuilder) -> None:
    batches = Batches(builder)
    batches.add_change(1, "open")
    batches.add_change(2, "open")
    batches.add_change(1, "finish")
    batches.call_back(1, "on_success", "on_finish", first_job_id=40)
    batches.add_change(2, "finish")
    batches.call_back(2, "on_success", "on_finish", first_job_id=30)


def finish_a_batch_before_a_callback_in_it(builder: EvidenceBuilder) -> None:
    batches = Batches(builder)
    batches.add_change(1, "open")
    batches.add_change(2, "open")
    batches.add_change(2, "finish")
    builder.change(30, None, "queued", batch=2, calls_back="on_finish")
    batches.add_change(1, "finish")


def join_a_finished_batch(builder: EvidenceBuilder) -> None:
    finish_a_batch(builder)
    Batches(builder).run_job(50, batch=1)


def call_back_twice(builder: EvidenceBuilder) -> None:
    finish_a_batch(builder)
    Batches(builder).call_back(1, "on_finish", first_job_id=50)


def leave_out_on_finish(builder: EvidenceBuilder) -> None:
    batches = Batches(builder)
    batches.add_change(1, "open")
    batches.add_change(1, "finish")
    batches.call_back(1, "on_success", first_job_id=40)


def call_back_for_success_after_a_failure(builder: EvidenceBuilder) -> None:
    batches = Batches(builder)
    batches.add_change(1, "open")
    batches.run_job(20, "discarded", batch=1)
    batches.add_change(1, "finish")
    batches.call_back(1, "on_success", "on_finish", first_job_id=40)


def call_back_before_the_end(builder: EvidenceBuilder) -> None:
    batches = Batches(builder)
    batches.add_change(1, "open")
    batches.call_back(1, "on_success", "on_finish", first_job_id=40)
    batches.add_change(1, "finish")


def never_complete_a_callback(builder: EvidenceBuilder) -> None:
    finish_a_batch(builder)
    builder.evidence.changes.pop()


# Chains


def run_a_chain(builder: EvidenceBuilder) -> None:
    """Run a chain of two jobs, a chain that continues after a failure, and a chain that does not: no violation."""
    builder.evidence.needs += [
        Need(job=21, needs=20, after_failure="discard"),
        Need(job=23, needs=22, after_failure="run"),
        Need(job=25, needs=24, after_failure="discard"),
    ]
    batches = Batches(builder)
    for job in (20, 21):
        batches.run_job(job)
    batches.run_job(22, "failed")
    batches.run_job(23)
    batches.run_job(24, "discarded")
    builder.change(25, None, "blocked")
    builder.change(25, "blocked", "discarded", lease=1, error="Discarded: it needs job 24, which has not completed.")


def begin_before_the_job_that_is_needed(builder: EvidenceBuilder) -> None:
    builder.evidence.needs.append(Need(21, 20, "run"))
    builder.change(20, None, "queued")
    Batches(builder).run_job(21)


def begin_after_a_failure(builder: EvidenceBuilder) -> None:
    builder.evidence.needs.append(Need(21, 20, "discard"))
    Batches(builder).run_job(20, "failed")
    Batches(builder).run_job(21)


def discard_without_a_failure(builder: EvidenceBuilder) -> None:
    builder.evidence.needs.append(Need(21, 20, "discard"))
    Batches(builder).run_job(20)
    builder.change(21, None, "blocked")
    builder.change(21, "blocked", "discarded", lease=1, error="Discarded: it needs job 20, which has not completed.")
