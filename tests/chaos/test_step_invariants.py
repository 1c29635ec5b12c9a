"""The invariants of steps and signals find what they are about, and nothing else."""

from collections.abc import Callable, Iterator

import pytest

from .evidence import Evidence
from .invariants import INVARIANTS
from .step_invariants import EFFECTS, STEPS, signals_arrive, steps_are_in_order, steps_happen_once
from .story import Story, uneventful

Forgery = Callable[[Story], None]

JOB = 7


def with_steps() -> Story:
    """A job goes through its steps, with a sleep and a wait, and takes its signal."""
    story = uneventful()
    story.defer(JOB)
    story.claim(JOB)
    story.change(JOB, "running", "scheduled", lease=2, attempts=0, holder="")
    story.change(JOB, "scheduled", "queued")
    story.claim(JOB)
    story.change(JOB, "running", "running", attempts=1)
    story.change(JOB, "running", "blocked", lease=4, attempts=0, holder="")
    story.change(JOB, "blocked", "queued")
    story.claim(JOB)
    story.write(JOB, *EFFECTS)
    story.settle(JOB)
    story.evidence.with_steps = {JOB}
    story.evidence.recorded = {JOB: STEPS}
    story.evidence.signals = {JOB: ["yes"]}
    story.evidence.taken = {JOB: "yes"}
    return story


def repeat_an_item(story: Story) -> None:
    story.write(JOB, "step item 1")


def leave_a_step_out(story: Story) -> None:
    story.evidence.entries.remove(next(entry for entry in story.evidence.entries if entry.what == "step last"))


def repeat_a_step_of_a_failed_job(story: Story) -> None:
    story.evidence.statuses[JOB] = "failed"
    story.write(JOB, "step account")


def lose_a_record(story: Story) -> None:
    story.evidence.recorded = {JOB: STEPS[:-1]}


def record_in_another_order(story: Story) -> None:
    story.evidence.recorded = {JOB: (*STEPS[1:], STEPS[0])}


def do_the_last_step_first(story: Story) -> None:
    last = next(entry for entry in story.evidence.entries if entry.what == "step last")
    story.evidence.entries.remove(last)
    story.evidence.entries.insert(0, last)


def send_a_signal_twice(story: Story) -> None:
    story.evidence.statuses[JOB] = "failed"
    story.evidence.signals = {JOB: ["yes", "no"]}


def take_a_signal_that_was_rolled_back(story: Story) -> None:
    story.evidence.signals = {}


def take_another_signal(story: Story) -> None:
    story.evidence.taken = {JOB: "no"}


def take_none(story: Story) -> None:
    story.evidence.taken = {}


FORGERIES: list[tuple[Callable[[Evidence], Iterator[str]], Forgery, str]] = [
    (steps_happen_once, repeat_an_item, "job 7 is completed, and did 'step item 1' 2 times"),
    (steps_happen_once, leave_a_step_out, "job 7 is completed, and did 'step last' 0 times"),
    (steps_happen_once, repeat_a_step_of_a_failed_job, "job 7 is failed, and did 'step account' 2 times"),
    (steps_are_in_order, lose_a_record, "job 7 is completed, and its recorded steps are account, nap"),
    (steps_are_in_order, record_in_another_order, "job 7 is completed, and its recorded steps are nap, children"),
    (steps_are_in_order, do_the_last_step_first, "job 7 had its effects in the order step last, step account"),
    (signals_arrive, send_a_signal_twice, "job 7 got 2 signals of one name"),
    (signals_arrive, take_a_signal_that_was_rolled_back, "job 7 took the signal 'yes', and [] was committed"),
    (signals_arrive, take_another_signal, "job 7 took the signal 'no', and ['yes'] was committed"),
    (signals_arrive, take_none, "job 7 took the signal None, and ['yes'] was committed"),
]


@pytest.mark.parametrize(("invariant", "forge", "expected"), FORGERIES)
def test_a_violation_is_found(invariant: Callable[[Evidence], Iterator[str]], forge: Forgery, expected: str) -> None:
    story = with_steps()
    forge(story)
    (violation,) = invariant(story.evidence)
    assert violation.startswith(expected)


def test_nothing_is_found_in_a_job_that_goes_through_its_steps() -> None:
    evidence = with_steps().evidence
    assert {invariant.__name__: list(invariant(evidence)) for invariant in INVARIANTS} == {
        invariant.__name__: [] for invariant in INVARIANTS
    }


def test_a_cancelled_job_may_have_done_some_of_its_steps() -> None:
    story = with_steps()
    story.evidence.statuses[JOB] = "discarded"
    story.evidence.entries = [
        entry for entry in story.evidence.entries if entry.job != JOB or entry.what == "step account"
    ]
    story.evidence.recorded = {}
    assert [list(invariant(story.evidence)) for invariant in (steps_happen_once, steps_are_in_order)] == [[], []]


def test_only_the_begin_of_a_new_count_may_change_the_attempts_of_a_running_job() -> None:
    story = with_steps()
    story.defer(8)
    story.claim(8)
    story.change(8, "running", "running", attempts=2)
    story.settle(8)
    violations = [violation for invariant in INVARIANTS for violation in invariant(story.evidence)]
    assert violations == ["job 8 went from running to running"]
