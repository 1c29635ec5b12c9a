"""The invariants of limits, rates, fairness, batches and chains find violations, and nothing in correct evidence."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from . import policy_forgeries as forgeries
from .evidence import Evidence
from .evidence_builder import EvidenceBuilder, without_violations
from .policies import (
    batches_call_back_once,
    chains_are_in_order,
    fairness_holds,
    limits_hold,
    rates_hold,
    sequences_are_in_order,
)

Forgery = Callable[[EvidenceBuilder], None]

# Functions that add changes without a violation.
WITHOUT_VIOLATION: list[Forgery] = [
    forgeries.keep_to_the_rate,
    forgeries.keep_to_the_rate_with_another_clock,
    forgeries.release_with_a_token,
    forgeries.queue_as_many_as_running_jobs_allow,
    forgeries.discard_a_failure,
    forgeries.finish_a_batch,
    forgeries.run_a_chain,
]

# The invariant, the function that adds a violation, and a part of the sentence about it.
FORGERIES: list[tuple[Callable[[Evidence], Any], Forgery, str]] = [
    (limits_hold, forgeries.admit_too_many, "a limit was held by the jobs [7, 8] at once"),
    (limits_hold, forgeries.overtake_a_retry, "a sequence was held by the jobs [7, 8] at once"),
    (limits_hold, forgeries.overtake_a_failure, "a sequence was held by the jobs [7, 8] at once"),
    (
        sequences_are_in_order,
        forgeries.begin_out_of_order_after_a_release,
        "job 7 of a sequence began after job 8",
    ),
    (sequences_are_in_order, forgeries.begin_out_of_order, "job 7 of a sequence began after job 8"),
    (rates_hold, forgeries.exceed_the_burst, "a rate had no token for job 22: it came 0.90 s too early"),
    (rates_hold, forgeries.exceed_the_rate, "a rate had no token for job 23: it came 0.10 s too early"),
    (rates_hold, forgeries.exceed_the_rate_after_the_clock, "a rate had no token for job 22: it came 0.90 s too early"),
    (rates_hold, forgeries.queue_more_than_the_burst, "a rate had the jobs [20, 21, 22] queued at once"),
    (rates_hold, forgeries.queue_without_a_token, "job 20 was queued by a admit, without a token of a rate"),
    (rates_hold, forgeries.claim_without_a_token, "job 20 was claimed without a token of a rate"),
    (rates_hold, forgeries.retry_without_a_token, "job 20 was queued by a settle, without a token of a rate"),
    (
        fairness_holds,
        forgeries.queue_more_than_the_capacity,
        "a tenant had 3 jobs queued, and at most 0 have run at once",
    ),
    (batches_call_back_once, forgeries.leave_a_batch_open, "batch 1 is open at the end"),
    (batches_call_back_once, forgeries.finish_a_batch_twice, "batch 1 was finished twice"),
    (batches_call_back_once, forgeries.finish_a_batch_too_soon, "batch 1 was finished while job 20 was queued"),
    (
        batches_call_back_once,
        forgeries.finish_a_batch_before_the_one_in_it,
        "batch 1 was finished before batch 2, which is in it",
    ),
    (
        batches_call_back_once,
        forgeries.finish_a_batch_before_a_callback_in_it,
        "batch 1 was finished while job 30 was queued",
    ),
    (batches_call_back_once, forgeries.join_a_finished_batch, "batch 1 was finished while job 50 was not there"),
    (
        batches_call_back_once,
        forgeries.call_back_twice,
        "batch 1 has called ['on_failure', 'on_finish', 'on_finish'], and not ['on_failure', 'on_finish']",
    ),
    (
        batches_call_back_once,
        forgeries.leave_out_on_finish,
        "batch 1 has called ['on_success'], and not ['on_finish', 'on_success']",
    ),
    (
        batches_call_back_once,
        forgeries.call_back_for_success_after_a_failure,
        "batch 1 has called ['on_finish', 'on_success'], and not ['on_failure', 'on_finish']",
    ),
    (batches_call_back_once, forgeries.call_back_before_the_end, "has called on_success before it was finished"),
    (
        batches_call_back_once,
        forgeries.never_complete_a_callback,
        "on_finish of batch 1, job 41, has completed 0 times",
    ),
    (
        chains_are_in_order,
        forgeries.begin_before_the_job_that_is_needed,
        "job 21 began while job 20, which it needs, was queued",
    ),
    (chains_are_in_order, forgeries.begin_after_a_failure, "job 21 began while job 20, which it needs, was failed"),
    (
        chains_are_in_order,
        forgeries.discard_without_a_failure,
        "job 21 was discarded while job 20, which it needs, was completed",
    ),
]

POLICIES = {invariant for invariant, _, _ in FORGERIES}


def violations_after(forge: Forgery) -> Iterator[str]:
    builder = without_violations()
    forge(builder)
    for invariant in POLICIES:
        yield from invariant(builder.evidence)


def test_changes_without_a_violation_pass_the_invariants_of_policies(subtests: pytest.Subtests) -> None:
    for forge in WITHOUT_VIOLATION:
        with subtests.test(forge.__name__):
            assert not list(violations_after(forge))


def test_each_invariant_of_policies_finds_its_violations(subtests: pytest.Subtests) -> None:
    for invariant, forge, expected in FORGERIES:
        with subtests.test(forge.__name__, invariant=invariant.__name__):
            builder = without_violations()
            forge(builder)
            assert any(expected in violation for violation in invariant(builder.evidence))
