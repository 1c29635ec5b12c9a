"""The invariants of limits, rates, fairness, batches and chains. The module `invariants` lists all invariants.

Invariant: each function is pure and exact. The number `seq` follows the order of commits among admissions of one key,
because each takes a lock of the key, and among changes of one batch, because each locks its row.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .evidence import FINISHED, BatchChange, Change, Evidence

TOLERANCE = 0.05
"""The share of a token that may be missing: PostgreSQL rounds times to microseconds."""

CLOCK_JUMP = 1.0
"""If the clock of PostgreSQL goes back by more than this number of seconds, the clock was set back."""

QUEUED_PER_RUNNING_JOB = 4
"""For each job of a fair key that has run at once, this number of jobs may be queued: one for the running job, two for
a job that has just ended, and one because the witness records changes a moment before other sessions see them."""


def limits_hold(evidence: Evidence) -> Iterator[str]:
    """(16) No more jobs of a key hold a permit at once than its limit allows; in a sequence it allows one."""
    holders_by_key: defaultdict[str, set[int]] = defaultdict(set)
    for change in evidence.changes:
        if change.limit_key is None or change.limit_kind == "fair":
            continue
        holders = holders_by_key[change.limit_key]
        holders.discard(change.job)
        if _holds_permit(change):
            holders.add(change.job)
            if len(holders) > (change.capacity or 0):
                yield f"{change.limit_key} was held by the jobs {sorted(holders)} at once"


def sequences_are_in_order(evidence: Evidence) -> Iterator[str]:
    """(17) The jobs of a sequence begin in the order in which they were deferred, except jobs retried by hand."""
    newest_begun_job: defaultdict[str, int] = defaultdict(int)
    retried: set[int] = set()
    for change in evidence.changes:
        key = change.limit_key
        if change.verb == "retry":
            retried.add(change.job)
        if key is None or change.limit_kind not in SEQUENCES or change.verb != "claim" or change.had_begun:
            continue
        if change.job in retried:
            continue
        if change.job < newest_begun_job[key]:
            yield f"job {change.job} of {key} began after job {newest_begun_job[key]}"
        newest_begun_job[key] = max(newest_begun_job[key], change.job)


def rates_hold(evidence: Evidence) -> Iterator[str]:
    """(18) No job with a rate is queued without a token of its key; tokens come at their rate, by PostgreSQL's clock.

    The number of queued jobs with a token never exceeds the burst.
    """
    buckets: defaultdict[str, Bucket] = defaultdict(Bucket)
    for change in evidence.changes:
        if change.rate_key is None:
            continue
        bucket = buckets[change.rate_key]
        bucket.queued.discard(change.job)
        if (change.before, change.after) == ("blocked", "running"):
            yield f"job {change.job} was claimed without a token of {change.rate_key}"
        if change.verb == "put_back":  # the statement gives the token of the job to another job
            bucket.passed_on.append(change.statement_began)
        if change.after != "queued" or change.verb == "release":  # a released job keeps its token
            continue
        if change.before != "blocked":
            yield f"job {change.job} was queued by a {change.verb}, without a token of {change.rate_key}"
            continue
        seconds_early = 0.0
        if change.statement_began in bucket.passed_on:
            bucket.passed_on.remove(change.statement_began)
        else:
            seconds_early = bucket.take(change)
        if seconds_early:
            yield f"{change.rate_key} had no token for job {change.job}: it came {seconds_early:.2f} s too early"
        bucket.queued.add(change.job)
        if len(bucket.queued) > (change.rate_burst or 0):
            yield f"{change.rate_key} had the jobs {sorted(bucket.queued)} queued at once, more than its burst"


def fairness_holds(evidence: Evidence) -> Iterator[str]:
    """(19) Few jobs of a tenant are queued: its capacity, and QUEUED_PER_RUNNING_JOB for each job that ran at once."""
    queued: defaultdict[str, set[int]] = defaultdict(set)
    running: defaultdict[str, set[int]] = defaultdict(set)
    most_running: Counter[str] = Counter()
    for change in evidence.changes:
        key = change.limit_key
        if key is None or change.limit_kind != "fair":
            continue
        queued[key].discard(change.job)
        running[key].discard(change.job)
        if change.after == "running":
            running[key].add(change.job)
            most_running[key] = max(most_running[key], len(running[key]))
        elif change.verb == "admit":
            queued[key].add(change.job)
            if len(queued[key]) > (change.capacity or 0) + QUEUED_PER_RUNNING_JOB * most_running[key]:
                yield f"{key} had {len(queued[key])} jobs queued, and at most {most_running[key]} have run at once"


def batches_call_back_once(evidence: Evidence) -> Iterator[str]:
    """(20) Each batch is finished once, after all of its jobs; each callback is then enqueued once, and completes."""
    end_by_batch: dict[int, int] = {}
    for end in evidence.batches:
        if end.what == "finish":
            if end.batch in end_by_batch:
                yield f"batch {end.batch} was finished twice"
            end_by_batch.setdefault(end.batch, end.seq)
    enqueued_by_batch: defaultdict[int, list[Change]] = defaultdict(list)
    for change in evidence.changes:
        if change.batch is not None and change.verb == "enqueue":
            enqueued_by_batch[change.batch].append(change)
    inner_batches_by_parent: defaultdict[int | None, list[int]] = defaultdict(list)
    opened = [change for change in evidence.batches if change.what == "open"]
    for batch in opened:
        inner_batches_by_parent[batch.parent].append(batch.batch)
    for batch in opened:
        if batch.batch in end_by_batch:
            yield from _judge_end(
                evidence, batch, end_by_batch, enqueued_by_batch, inner_batches_by_parent[batch.batch]
            )
        else:
            yield f"batch {batch.batch} is open at the end"


def chains_are_in_order(evidence: Evidence) -> Iterator[str]:
    """(21) A job of a chain begins after the jobs that it needs; it is discarded only if one of these jobs fails."""
    for need in evidence.needs:
        for change in evidence.by_job.get(need.job, ()):
            needed_status = evidence.status_at(need.needs, change.seq)
            is_let_through = needed_status == "completed" or (needed_status in FINISHED and need.after_failure == "run")
            if change.verb == "claim" and not is_let_through:
                yield f"job {need.job} began while job {need.needs}, which it needs, was {needed_status}"
            if f"needs job {need.needs}, which" in (change.error or "") and needed_status not in (
                "failed",
                "discarded",
            ):
                yield f"job {need.job} was discarded while job {need.needs}, which it needs, was {needed_status}"


# Judging

SEQUENCES = ("sequence", "halting")

SURPLUS_SECONDS = 0.1
"""A key may have more tokens than its burst: the tokens of this number of seconds, because supervisors may be late."""


@dataclass
class Bucket:
    """The largest number of tokens that one key can have after the admissions so far."""

    full_at: float = 0.0
    """When the bucket has as many tokens as its burst again, by the clock of PostgreSQL."""
    last: Change | None = None
    queued: set[int] = field(default_factory=set)
    """The jobs that have a token and are not claimed yet."""
    passed_on: list[float] = field(default_factory=list)
    """The start times of the statements that have put a job back and passed its token on to another job."""

    def take(self, change: Change) -> float:
        """Take a token for this admission. Returns the seconds by which the admission came too early."""
        interval, burst = change.rate_interval or 0.0, change.rate_burst or 0
        if self.last is not None:
            offset_before, clock_offset = self.last.statement_began - self.last.at, change.statement_began - change.at
            if offset_before - clock_offset > CLOCK_JUMP:  # set back: the bucket is empty, and fills from now on
                self.full_at = min(self.full_at, self.last.at + clock_offset + burst * interval)
        # The bucket was filled up to `full_at`, so the time until then says how many tokens are missing now.
        tokens_missing = max(self.full_at - change.statement_began, -SURPLUS_SECONDS) / interval
        self.full_at = change.statement_began + (tokens_missing + 1) * interval
        self.last = change
        tokens_too_many = tokens_missing - (burst - 1)
        return tokens_too_many * interval if tokens_too_many > TOLERANCE else 0.0


def _holds_permit(change: Change) -> bool:
    """Whether the job holds a permit now. A job of a sequence also holds one while it waits for a retry or halts it."""
    waits = change.after == "scheduled" and change.has_begun and change.limit_kind in SEQUENCES
    halts = change.after == "failed" and change.limit_kind == "halting"
    return (change.after in ("queued", "running") and not change.is_ahead) or bool(waits) or halts


def _judge_end(
    evidence: Evidence,
    batch: BatchChange,
    end_by_batch: dict[int, int],
    enqueued_by_batch: dict[int, list[Change]],
    inner_batches: list[int],
) -> Iterator[str]:
    """Yield the violations at the end of a batch: unfinished jobs, and wrong callbacks."""
    end = end_by_batch[batch.batch]
    jobs = [change.job for change in enqueued_by_batch.get(batch.batch, ()) if change.calls_back is None]
    callbacks = [change for change in enqueued_by_batch.get(batch.batch, ()) if change.calls_back is not None]
    statuses = {job: evidence.status_at(job, end) for job in jobs}
    for inner_batch in inner_batches:
        if end_by_batch.get(inner_batch, end) >= end:
            yield f"batch {batch.batch} was finished before batch {inner_batch}, which is in it"
        statuses |= {
            change.job: evidence.status_at(change.job, end) for change in enqueued_by_batch.get(inner_batch, ())
        }
    for job, status in statuses.items():
        if status not in FINISHED:
            yield f"batch {batch.batch} was finished while job {job} was {status or 'not there'}"
    is_success = set(statuses.values()) <= {"completed"}  # the load nests batches only once
    expected = {"on_finish", "on_success" if is_success else "on_failure"} & batch.calls
    counts = Counter(change.calls_back for change in callbacks)
    if counts != Counter(expected):
        yield f"batch {batch.batch} has called {sorted(counts.elements(), key=str)}, and not {sorted(expected)}"
    for change in callbacks:
        if change.seq < end:
            yield f"batch {batch.batch} has called {change.calls_back} before it was finished"
        completed = sum(change_of_job.after == "completed" for change_of_job in evidence.by_job[change.job])
        if completed != 1:
            yield f"{change.calls_back} of batch {batch.batch}, job {change.job}, has completed {completed} times"
