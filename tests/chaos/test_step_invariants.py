"""The invariants of steps and signals find forged violations, and nothing in correct evidence."""

from collections.abc import Callable, Iterator

import pytest

from .evidence import Evidence
from .evidence_builder import EvidenceBuilder, without_violations
from .invariants import INVARIANTS
from .step_invariants import EFFECTS, STEPS, signals_arrive, steps_are_in_order, steps_happen_once

Forgery = Callable[[EvidenceBuilder], None]

JOB = 7


def with_steps() -> EvidenceBuilder:
    """Evidence of a job that goes through its steps, with a sleep and a wait, and takes its signal."""
    builder = without_violations()
    builder.defer(JOB)
    builder.claim(JOB)
    builder.change(JOB, "running", "scheduled", lease=2, attempts=0, holder="")  # it sleeps
    builder.change(JOB, "scheduled", "queued")
    builder.claim(JOB)
    builder.change(JOB, "running", "running", attempts=1)  # its attempts are counted again
    builder.change(JOB, "running", "blocked", lease=4, attempts=0, holder="")  # it waits for its signal
    builder.change(JOB, "blocked", "queued")
    builder.claim(JOB)
    builder.write_entries(JOB, *EFFECTS)
    builder.settle(JOB)
    builder.evidence.with_steps = {JOB}
    builder.evidence.recorded = {JOB: STEPS}
    builder.evidence.signals = {JOB: ["yes"]}
    builder.evidence.taken = {JOB: "yes"}
    return builder


def repeat_an_item(builder: EvidenceBuilder) -> None:
    builder.write_entries(JOB, "step item 1")


def leave_a_step_out(builder: EvidenceBuilder) -> None:
    builder.evidence.entries.remove(next(entry for entry in builder.evidence.entries if entry.what == "step last"))


def repeat_a_step_of_a_failed_job(builder: EvidenceBuilder) -> None:
    builder.evidence.statuses[JOB] = "failed"
    builder.write_entries(JOB, "step account")


def lose_a_record(builder: EvidenceBuilder) -> None:
    builder.evidence.recorded = {JOB: STEPS[:-1]}


def record_in_another_order(builder: EvidenceBuilder) -> None:
    builder.evidence.recorded = {JOB: (*STEPS[1:], STEPS[0])}


def do_the_last_step_first(builder: EvidenceBuilder) -> None:
    entry_of_last_step = next(entry for entry in builder.evidence.entries if entry.what == "step last")
    builder.evidence.entries.remove(entry_of_last_step)
    builder.evidence.entries.insert(0, entry_of_last_step)


def send_a_signal_twice(builder: EvidenceBuilder) -> None:
    builder.evidence.statuses[JOB] = "failed"
    builder.evidence.signals = {JOB: ["yes", "no"]}


def take_a_signal_that_was_rolled_back(builder: EvidenceBuilder) -> None:
    builder.evidence.signals = {}


def take_another_signal(builder: EvidenceBuilder) -> None:
    builder.evidence.taken = {JOB: "no"}


def take_no_signal(builder: EvidenceBuilder) -> None:
    builder.evidence.taken = {}


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
    (signals_arrive, take_no_signal, "job 7 took the signal None, and ['yes'] was committed"),
]


@pytest.mark.parametrize(("invariant", "forge", "expected"), FORGERIES)
def test_each_invariant_of_steps_finds_its_violation(
    invariant: Callable[[Evidence], Iterator[str]], forge: Forgery, expected: str
) -> None:
    builder = with_steps()
    forge(builder)
    (violation,) = invariant(builder.evidence)
    assert violation.startswith(expected)


def test_a_job_that_goes_through_its_steps_passes_the_invariants_of_steps() -> None:
    evidence = with_steps().evidence
    assert {invariant.__name__: list(invariant(evidence)) for invariant in INVARIANTS} == {
        invariant.__name__: [] for invariant in INVARIANTS
    }


def test_a_cancelled_job_may_have_done_some_of_its_steps() -> None:
    builder = with_steps()
    builder.evidence.statuses[JOB] = "discarded"
    builder.evidence.entries = [
        entry for entry in builder.evidence.entries if entry.job != JOB or entry.what == "step account"
    ]
    builder.evidence.recorded = {}
    assert [list(invariant(builder.evidence)) for invariant in (steps_happen_once, steps_are_in_order)] == [[], []]


def test_the_attempts_of_a_running_job_may_change_only_when_a_new_count_begins() -> None:
    builder = with_steps()
    builder.defer(8)
    builder.claim(8)
    builder.change(8, "running", "running", attempts=2)
    builder.settle(8)
    violations = [violation for invariant in INVARIANTS for violation in invariant(builder.evidence)]
    assert violations == ["job 8 went from running to running"]
