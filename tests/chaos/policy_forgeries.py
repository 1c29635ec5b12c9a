"""Violations of limits, rates, fairness, batches and chains, each to be forged into a story that has none.

Invariant: each violates one invariant, which `test_policies` names beside it.
"""

from typing import Any

from .evidence import BatchChange, Need
from .story import Story

CONCURRENCY = {"limit_key": "a limit", "limit_kind": "concurrency", "capacity": 1}
HALTING = {"limit_key": "a sequence", "limit_kind": "halting", "capacity": 1}
SEQUENCE = {"limit_key": "a sequence", "limit_kind": "sequence", "capacity": 1}
RATE = {"rate_key": "a rate", "rate_interval": 1.0, "rate_burst": 2}
FAIR = {"limit_key": "a tenant", "limit_kind": "fair", "capacity": 2}
CALLS = frozenset(("on_success", "on_failure", "on_finish"))


# Limits and sequences


def admit_too_many(story: Story) -> None:
    for job in (7, 8):
        story.change(job, None, "blocked", **CONCURRENCY)
        story.change(job, "blocked", "queued", **CONCURRENCY)


def overtake_a_retry(story: Story) -> None:
    for job in (7, 8):
        story.change(job, None, "blocked", **SEQUENCE)
    story.change(7, "blocked", "queued", **SEQUENCE)
    story.change(7, "queued", "running", lease=1, attempts=1, **SEQUENCE)
    story.change(7, "running", "scheduled", lease=2, error="ran under lease 1", has_begun=True, **SEQUENCE)
    story.change(8, "blocked", "queued", **SEQUENCE)


def overtake_a_failure(story: Story) -> None:
    for job in (7, 8):
        story.change(job, None, "blocked", **HALTING)
    story.change(7, "blocked", "queued", **HALTING)
    story.change(7, "queued", "running", lease=1, attempts=1, **HALTING)
    story.change(7, "running", "failed", lease=2, error="ran under lease 1", **HALTING)
    story.change(8, "blocked", "queued", **HALTING)


def discard_a_failure(story: Story) -> None:
    """The operator does it, and the sequence goes on."""
    for job in (7, 8):
        story.change(job, None, "blocked", **HALTING)
    story.change(7, "blocked", "queued", **HALTING)
    story.change(7, "queued", "running", lease=1, attempts=1, **HALTING)
    story.change(7, "running", "failed", lease=2, error="ran under lease 1", **HALTING)
    story.change(7, "failed", "discarded", lease=3, **HALTING)
    story.change(8, "blocked", "queued", **HALTING)


def begin_out_of_order_after_a_release(story: Story) -> None:
    """The first one was claimed before, and given back before it began."""
    story.change(7, None, "queued", **SEQUENCE)
    story.change(7, "queued", "running", lease=1, attempts=1, **SEQUENCE)
    story.change(7, "running", "queued", lease=2, attempts=0, holder="", **SEQUENCE)
    story.change(7, "queued", "scheduled", **SEQUENCE)
    story.change(8, None, "queued", **SEQUENCE)
    story.change(8, "queued", "running", lease=1, attempts=1, **SEQUENCE)
    story.change(8, "running", "completed", lease=2, **SEQUENCE)
    story.change(7, "scheduled", "queued", **SEQUENCE)
    story.change(7, "queued", "running", lease=3, attempts=1, **SEQUENCE)


def begin_out_of_order(story: Story) -> None:
    for job in (8, 7):
        story.change(job, None, "queued", **SEQUENCE)
        story.change(job, "queued", "running", lease=1, attempts=1, **SEQUENCE)
        story.change(job, "running", "completed", lease=2, **SEQUENCE)


# Rates: one token a second, and a burst of two


def admit(story: Story, job: int, after: float, *, clock: float = 0.0, claim: bool = True) -> None:
    """Admit a job so many seconds after 200, by a PostgreSQL whose clock is off by so many."""
    story.time = 200 + after
    story.change(job, None, "blocked", **RATE)
    story.time = 200 + after
    story.change(job, "blocked", "queued", stated=story.time + clock, **RATE)
    if claim:
        story.change(job, "queued", "running", lease=1, attempts=1, **RATE)


def keep_to_the_rate(story: Story) -> None:
    for job, after in enumerate((0, 0, 1, 2, 5, 5.5, 6), start=20):
        admit(story, job, after)


def keep_to_the_rate_with_another_clock(story: Story) -> None:
    """Eight seconds forward: one burst. Back again: one more second for the first one."""
    times = ((0, 0), (0, 0), (1, 8), (1, 8), (2, 8), (4, 0), (5, 0), (5.1, 8), (5.1, 8), (6.1, 0))
    for job, (after, clock) in enumerate(times, start=20):
        admit(story, job, after, clock=clock)


def give_back_and_claim_again(story: Story) -> None:
    """A job that is released keeps its token, beside a burst of others."""
    admit(story, 20, 0)
    story.change(20, "running", "queued", lease=2, attempts=0, holder="", **RATE)
    admit(story, 21, 0, claim=False)
    admit(story, 22, 1, claim=False)


def exceed_the_burst(story: Story) -> None:
    for job in (20, 21, 22):
        admit(story, job, 0)


def exceed_the_rate(story: Story) -> None:
    for job, after in enumerate((0, 0, 1, 1.8), start=20):
        admit(story, job, after)


def exceed_the_rate_after_the_clock(story: Story) -> None:
    """It was set back: the bucket is empty at that moment, and not full."""
    for job, (after, clock) in enumerate(((0, 8), (0, 8), (0.1, 0), (0.1, 0)), start=20):
        admit(story, job, after, clock=clock)


def queue_more_than_the_burst(story: Story) -> None:
    for job, after in enumerate((0, 1, 2), start=20):
        admit(story, job, after, claim=False)


def queue_without_a_token(story: Story) -> None:
    story.change(20, None, "scheduled", **RATE)
    story.change(20, "scheduled", "queued", **RATE)


def claim_without_a_token(story: Story) -> None:
    """A job begins that waited for its rate."""
    story.change(20, None, "blocked", **RATE)
    story.change(20, "blocked", "running", **RATE)


def retry_without_a_token(story: Story) -> None:
    admit(story, 20, 0)
    story.change(20, "running", "queued", lease=2, error="ran under lease 1", holder="other", **RATE)


# Fairness


def queue_few(story: Story) -> None:
    for job in range(20, 28):
        story.change(job, None, "blocked", **FAIR)
    for job in (20, 21):
        story.change(job, "blocked", "queued", **FAIR)
        story.change(job, "queued", "running", lease=1, attempts=1, **FAIR)
    for job in range(22, 28):
        story.change(job, "blocked", "queued", **FAIR)


def queue_many(story: Story) -> None:
    for job in (20, 21, 22):
        story.change(job, None, "blocked", **FAIR)
        story.change(job, "blocked", "queued", **FAIR)


# Batches


class Batches:
    """Steps of a batch 1, which is in no other one, and of a batch 2 in it."""

    def __init__(self, story: Story) -> None:
        self.story = story

    def note(self, batch: int, what: str) -> None:
        """Something became of a batch; its number is that of the next change."""
        parent = 1 if batch == 2 else None
        seq = len(self.story.evidence.changes) + 1
        self.story.change(99, None, "queued")  # takes the number
        self.story.evidence.changes[-1] = self.story.evidence.changes[-1]._replace(job=0)
        self.story.evidence.batches.append(BatchChange(seq, batch, parent, what, CALLS))

    def run(self, job: int, status: str = "completed", **values: Any) -> None:
        self.story.change(job, None, "queued", **values)
        self.story.change(job, "queued", "running", lease=1, attempts=1, **values)
        self.story.change(job, "running", status, lease=2, **values)

    def call(self, batch: int, *names: str, first: int) -> None:
        for job, name in enumerate(names, start=first):
            self.run(job, batch=batch, calls_back=name)


def finish_a_batch(story: Story) -> None:
    """With a batch in it, one of whose jobs fails."""
    batches = Batches(story)
    batches.note(1, "open")
    batches.note(2, "open")
    batches.run(20, batch=1)
    batches.run(21, "failed", batch=2)
    batches.note(2, "finish")
    batches.call(2, "on_failure", "on_finish", first=30)
    batches.note(1, "finish")
    batches.call(1, "on_failure", "on_finish", first=40)


def leave_a_batch_open(story: Story) -> None:
    batches = Batches(story)
    batches.note(1, "open")
    batches.run(20, batch=1)


def finish_a_batch_twice(story: Story) -> None:
    finish_a_batch(story)
    Batches(story).note(1, "finish")


def finish_a_batch_too_soon(story: Story) -> None:
    batches = Batches(story)
    batches.note(1, "open")
    story.change(20, None, "queued", batch=1)
    batches.note(1, "finish")
    batches.call(1, "on_success", "on_finish", first=40)


def finish_a_batch_before_the_one_in_it(story: Story) -> None:
    batches = Batches(story)
    batches.note(1, "open")
    batches.note(2, "open")
    batches.note(1, "finish")
    batches.call(1, "on_success", "on_finish", first=40)
    batches.note(2, "finish")
    batches.call(2, "on_success", "on_finish", first=30)


def finish_a_batch_before_a_callback_in_it(story: Story) -> None:
    batches = Batches(story)
    batches.note(1, "open")
    batches.note(2, "open")
    batches.note(2, "finish")
    story.change(30, None, "queued", batch=2, calls_back="on_finish")
    batches.note(1, "finish")


def join_a_finished_batch(story: Story) -> None:
    finish_a_batch(story)
    Batches(story).run(50, batch=1)


def call_back_twice(story: Story) -> None:
    finish_a_batch(story)
    Batches(story).call(1, "on_finish", first=50)


def never_call_back(story: Story) -> None:
    batches = Batches(story)
    batches.note(1, "open")
    batches.note(1, "finish")
    batches.call(1, "on_success", first=40)


def call_back_for_success_after_a_failure(story: Story) -> None:
    batches = Batches(story)
    batches.note(1, "open")
    batches.run(20, "discarded", batch=1)
    batches.note(1, "finish")
    batches.call(1, "on_success", "on_finish", first=40)


def call_back_before_the_end(story: Story) -> None:
    batches = Batches(story)
    batches.note(1, "open")
    batches.call(1, "on_success", "on_finish", first=40)
    batches.note(1, "finish")


def never_complete_a_callback(story: Story) -> None:
    finish_a_batch(story)
    story.evidence.changes.pop()


# Chains


def run_a_chain(story: Story) -> None:
    """Of two jobs; and one that goes on after a failure, and one that does not."""
    story.evidence.needs += [Need(21, 20, "discard"), Need(23, 22, "run"), Need(25, 24, "discard")]
    batches = Batches(story)
    for job in (20, 21):
        batches.run(job)
    batches.run(22, "failed")
    batches.run(23)
    batches.run(24, "discarded")
    story.change(25, None, "blocked")
    story.change(25, "blocked", "discarded", lease=1, error="Discarded: it needs job 24, which has not completed.")


def begin_before_the_job_that_is_needed(story: Story) -> None:
    story.evidence.needs.append(Need(21, 20, "run"))
    story.change(20, None, "queued")
    Batches(story).run(21)


def begin_after_a_failure(story: Story) -> None:
    story.evidence.needs.append(Need(21, 20, "discard"))
    Batches(story).run(20, "failed")
    Batches(story).run(21)


def discard_without_a_failure(story: Story) -> None:
    story.evidence.needs.append(Need(21, 20, "discard"))
    Batches(story).run(20)
    story.change(21, None, "blocked")
    story.change(21, "blocked", "discarded", lease=1, error="Discarded: it needs job 20, which has not completed.")
