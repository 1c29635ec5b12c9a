"""Each invariant finds its violation in forged evidence, and nothing in evidence without a violation."""

from collections.abc import Callable
from typing import Any

import pytest

from . import forgeries
from .evidence import Evidence
from .evidence_builder import EvidenceBuilder, without_violations
from .invariants import (
    INVARIANTS,
    atomic_effects_once,
    attempts_are_bounded,
    deaths_are_counted_right,
    deaths_are_noticed,
    live_workers_keep_their_jobs,
    nothing_is_lost,
    nothing_is_overdue,
    nothing_waits_for_long,
    one_live_lease,
    repeats_are_explained,
    rows_are_in_their_place,
    settled_by_its_holder,
    speed_is_back,
    stops_are_clean,
    unique_keys_are_unique,
)
from .test_policies import POLICIES
from .test_step_invariants import FORGERIES as STEP_FORGERIES

Forgery = Callable[[EvidenceBuilder], None]


def test_evidence_without_a_violation_passes_all_invariants() -> None:
    evidence = without_violations().evidence
    assert [list(invariant(evidence)) for invariant in INVARIANTS] == [[]] * len(INVARIANTS)


# The invariant, the function that adds a violation, and a part of the sentence about it.
FORGERIES: list[tuple[Callable[[Evidence], Any], Forgery, str]] = [
    (nothing_is_lost, forgeries.delete_the_row_of_a_job, "job 1 was committed, and has no row"),
    (nothing_is_lost, forgeries.leave_a_job_running, "job 7 is still running"),
    (nothing_is_lost, forgeries.keep_a_job_of_a_rolled_back_transaction, "job 7 has a row"),
    (one_live_lease, forgeries.claim_a_running_job, "job 7 went from running to running"),
    (one_live_lease, forgeries.take_over_after_one_death, "job 7 was running, and machine-2/alone took it over"),
    (one_live_lease, forgeries.take_over_on_another_machine, "job 7 was running, and machine-2/alone took it over"),
    (one_live_lease, forgeries.take_over_as_an_ordinary_worker, "job 7 was running, and machine-1/2 took it over"),
    (one_live_lease, forgeries.take_over_a_job_that_has_begun, "job 7 was running, and machine-2/alone took it over"),
    (one_live_lease, forgeries.use_a_lease_twice, "job 7 kept lease 2 through a claim"),
    (one_live_lease, forgeries.change_a_row_without_a_record, "job 7 was queued under lease 0"),
    (one_live_lease, forgeries.begin_twice_under_one_lease, "job 7 began 2 times under lease 1"),
    (one_live_lease, forgeries.begin_under_no_lease, "job 1 began under lease 99, which was never given"),
    (
        settled_by_its_holder,
        forgeries.write_the_outcome_of_a_lost_lease,
        "job 7 held lease 3, and an outcome of lease 1",
    ),
    (atomic_effects_once, forgeries.have_an_effect_twice, "job 2 is completed, and its effect is there 2 times"),
    (atomic_effects_once, forgeries.have_no_effect, "job 7 is completed, and its effect is there 0 times"),
    (atomic_effects_once, forgeries.have_an_effect_and_fail, "job 7 is failed, and its effect is there 1 times"),
    (
        repeats_are_explained,
        forgeries.run_a_completed_job_again,
        "job 7 ran to its end under lease 1 and again: its outcome",
    ),
    (
        repeats_are_explained,
        forgeries.recover_without_a_log_line,
        "job 3 ran to its end under lease 1 and again: no line",
    ),
    (
        repeats_are_explained,
        forgeries.log_a_recovery_too_late,
        "job 3 ran to its end under lease 1 and again: no line",
    ),
    (
        repeats_are_explained,
        forgeries.release_without_a_log_line,
        "job 7 ran to its end under lease 1 and again: no line",
    ),
    (attempts_are_bounded, forgeries.exceed_max_attempts, "job 7 was at attempt 4 of 3"),
    (attempts_are_bounded, forgeries.make_attempts_negative, "job 7 was at attempt -1 of 3"),
    (unique_keys_are_unique, forgeries.hold_a_key_twice, "'the key' was alive as job 7 and as job 8"),
    (stops_are_clean, forgeries.hang_after_sigterm, "machine-1 did not end"),
    (stops_are_clean, forgeries.end_with_an_error, "machine-1 ended with exit code 1"),
    (stops_are_clean, forgeries.leave_a_job_behind_after_sigterm, "job 7 was left running after SIGTERM"),
    (stops_are_clean, forgeries.charge_a_job_for_sigterm, "job 7 was charged an attempt for a SIGTERM"),
    (
        stops_are_clean,
        forgeries.release_a_job_after_sigterm_and_charge_it,
        "job 7 was charged an attempt for a SIGTERM",
    ),
    (speed_is_back, forgeries.finish_half_of_the_jobs, "10 s after the last fault"),
    (speed_is_back, forgeries.finish_no_job_for_11_seconds, "after the last fault no job was finished for 11.0 s"),
    (deaths_are_noticed, forgeries.notice_the_death_of_a_process_late, "was taken back after 2.1 s"),
    (deaths_are_noticed, forgeries.notice_the_death_of_a_machine_late, "was taken back after 9.1 s"),
    (deaths_are_noticed, forgeries.never_notice_a_death, "was taken back never"),
    (
        live_workers_keep_their_jobs,
        forgeries.recover_a_job_of_a_live_worker,
        "job 7 was taken from machine-1/2, which was alive",
    ),
    (live_workers_keep_their_jobs, forgeries.end_a_worker_without_a_reason, "a worker of machine-1 ended"),
    (
        deaths_are_counted_right,
        forgeries.fail_for_deaths_of_one_worker,
        "job 7 failed for the deaths of its workers, and 1 of them died",
    ),
    (
        deaths_are_counted_right,
        forgeries.fail_for_deaths_of_a_live_worker,
        "job 7 failed for the deaths of its workers, and 0 of them died",
    ),
    (rows_are_in_their_place, forgeries.complete_without_a_row, "job 7 is completed, and its row is not there"),
    (rows_are_in_their_place, forgeries.write_into_another_schema, "job 7 wrote into the wrong schema"),
    (nothing_waits_for_long, forgeries.have_an_urgent_job_wait, "job 7 was urgent, and began after 5.5 s"),
    (
        nothing_waits_for_long,
        forgeries.begin_long_after_the_claim,
        "job 7 was claimed by machine-1/2, and waited there for 5.5 s",
    ),
    (
        nothing_waits_for_long,
        forgeries.release_long_after_the_claim,
        "job 7 was claimed by machine-1/2, and waited there for 5.5 s",
    ),
    (nothing_is_overdue, forgeries.never_replace_a_paused_worker, "was not replaced"),
]


def test_each_invariant_finds_its_violations(subtests: pytest.Subtests) -> None:
    for invariant, forge, expected in FORGERIES:
        with subtests.test(forge.__name__, invariant=invariant.__name__):
            builder = without_violations()
            forge(builder)
            assert any(expected in violation for violation in invariant(builder.evidence))


def test_every_invariant_is_tested_by_a_forged_violation() -> None:
    assert {invariant for invariant, _, _ in (*FORGERIES, *STEP_FORGERIES)} | POLICIES == set(INVARIANTS)
