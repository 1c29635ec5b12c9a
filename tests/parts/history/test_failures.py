"""The failed attempts by their cause, read from the roll-ups."""

import secrets
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from django_skipqueue.models import FailureRollUp, Job
from django_skipqueue.parts.history.causes import (
    FailureCounts,
    Standing,
    acknowledge,
    failing_causes,
    failures_of,
    last_messages,
    unacknowledge,
)
from django_skipqueue.parts.history.rollups import AttemptCounts
from django_skipqueue.values.records import Cause
from django_skipqueue.values.redaction import MASK

from ...app.failing import BAD_VALUE, UNAVAILABLE, make_failing
from ...app.rows import DEFAULT
from .failing import record_ended_attempts, record_failures

HOUR, DAY = 3600.0, 86_400.0

pytestmark = pytest.mark.django_db


def test_attempts_are_counted_within_an_hour_a_day_and_a_week() -> None:
    for number, seconds_ago in ((1, 8 * DAY), (10, 3 * DAY), (100, 3 * HOUR), (1_000, 20 * 60), (10_000, 0)):
        record_failures(UNAVAILABLE, number, seconds_ago=seconds_ago)
    (counts,) = failing_causes(DEFAULT, limit=10)
    assert counts.cause == UNAVAILABLE
    assert (counts.in_hour, counts.in_day, counts.in_week) == (11_000, 11_100, 11_110)
    assert sum(counts.by_hour.values()) == 11_110
    assert counts.by_hour[int(counts.now.timestamp() // 3600)] >= 10_000
    assert timedelta(days=8) <= counts.now - counts.first_at < timedelta(days=8, minutes=1)
    assert counts.now - counts.last_at < timedelta(minutes=1)
    assert (counts.last_line, counts.last_job_id) == (42, 7)
    assert failures_of(DEFAULT, UNAVAILABLE)._replace(now=counts.now) == counts  # type: ignore[union-attr]


def test_causes_of_the_last_ten_minutes_come_first_by_number_then_older_causes_by_time() -> None:
    causes = [BAD_VALUE._replace(place=f"shop.jobs.f{number}") for number in range(4)]
    record_failures(causes[0], 500, seconds_ago=4 * HOUR)
    record_failures(causes[1], 2)
    record_failures(causes[2], 400, seconds_ago=3 * HOUR)
    record_failures(causes[3], 3, seconds_ago=5 * 60)
    expected = [causes[3], causes[1], causes[2], causes[0]]
    assert [counts.cause for counts in failing_causes(DEFAULT, limit=10)] == expected
    assert [counts.cause for counts in failing_causes(DEFAULT, limit=1)] == expected[:1]


class TestStanding:
    @staticmethod
    def standing_of(cause: Cause = BAD_VALUE) -> Standing:
        counts = failures_of(DEFAULT, cause)
        assert counts is not None
        return counts.standing

    def test_a_cause_of_the_last_ten_minutes_is_failing(self) -> None:
        record_failures(BAD_VALUE, seconds_ago=8 * 60)
        record_ended_attempts(BAD_VALUE.task)
        assert self.standing_of() == Standing.FAILING

    @pytest.mark.parametrize("minutes", [24, 24 * 60, 6 * 24 * 60])
    def test_a_cause_has_stopped_once_attempts_of_its_task_have_ended_since(self, minutes: int) -> None:
        record_failures(BAD_VALUE, seconds_ago=minutes * 60)
        record_ended_attempts(BAD_VALUE.task, seconds_ago=minutes * 60)
        record_ended_attempts("another.task")
        record_ended_attempts(BAD_VALUE.task, AttemptCounts(snoozed=3, recovered=1, lost=1), seconds_ago=60)
        assert self.standing_of() == Standing.OPEN, "the attempts of the minute in which it failed say nothing"
        seconds_ago = 60.0 * min(minutes - 3, 4 * 60)
        record_ended_attempts(BAD_VALUE.task, AttemptCounts(retried=1), seconds_ago=seconds_ago, queue_name="mail")
        assert self.standing_of() == Standing.STOPPED

    def test_causes_are_listed_by_their_standing(self) -> None:
        stopped, open_cause = (BAD_VALUE._replace(task=name) for name in ("a.stopped", "a.open"))
        record_failures(stopped, 9, seconds_ago=HOUR / 2)
        record_ended_attempts(stopped.task, seconds_ago=120)
        record_failures(open_cause, seconds_ago=2 * HOUR)
        record_failures(BAD_VALUE)
        record_failures(UNAVAILABLE, 5)
        acknowledge(DEFAULT, UNAVAILABLE, by="ann")
        listed_counts = failing_causes(DEFAULT, limit=10)
        assert [counts.standing for counts in listed_counts] == list(Standing)
        assert [counts.cause for counts in listed_counts] == [BAD_VALUE, open_cause, stopped, UNAVAILABLE]
        assert [counts.cause for counts in failing_causes(DEFAULT, limit=10, task="a.open")] == [open_cause]


class TestAcknowledgement:
    @staticmethod
    def counts_of(cause: Cause = BAD_VALUE) -> FailureCounts:
        counts = failures_of(DEFAULT, cause)
        assert counts is not None
        return counts

    def test_an_acknowledgement_records_user_time_and_note_until_it_is_taken_back(self) -> None:
        assert not acknowledge(DEFAULT, BAD_VALUE, by="ann")
        record_failures(BAD_VALUE)
        assert acknowledge(DEFAULT, BAD_VALUE, by="ann", note="ticket 12")
        counts = self.counts_of()
        assert (counts.is_acknowledged, counts.acknowledged_by, counts.note) == (True, "ann", "ticket 12")
        assert counts.acknowledged_at is not None
        assert unacknowledge(DEFAULT, BAD_VALUE)
        assert not unacknowledge(DEFAULT, BAD_VALUE)
        counts = self.counts_of()
        assert (counts.standing, counts.acknowledged_at, counts.note) == (Standing.FAILING, None, "")

    def test_an_acknowledgement_holds_while_the_cause_goes_on_as_before(self) -> None:
        record_failures(BAD_VALUE, 30)
        acknowledge(DEFAULT, BAD_VALUE, by="ann")
        record_failures(BAD_VALUE, 59)
        assert self.counts_of().is_acknowledged
        record_failures(BAD_VALUE, 1)
        assert not self.counts_of().is_acknowledged, "it fails three times as often"

    def test_a_rise_to_a_few_failures_keeps_the_acknowledgement(self) -> None:
        record_failures(BAD_VALUE, seconds_ago=HOUR)
        acknowledge(DEFAULT, BAD_VALUE, by="ann")
        record_failures(BAD_VALUE, 19)
        assert self.counts_of().is_acknowledged
        record_failures(BAD_VALUE, 1)
        assert not self.counts_of().is_acknowledged

    def test_an_acknowledgement_ends_when_the_cause_comes_back_after_it_had_stopped(self) -> None:
        record_failures(BAD_VALUE, seconds_ago=30 * 60)
        acknowledge(DEFAULT, BAD_VALUE, by="ann")
        FailureRollUp.objects.update(acknowledged_at=Now() - timedelta(minutes=29))
        record_ended_attempts(BAD_VALUE.task, seconds_ago=15 * 60)
        record_failures(BAD_VALUE, seconds_ago=60)
        counts = self.counts_of()
        assert counts.standing == Standing.FAILING
        assert counts.acknowledged_by == "ann", "the row still says who had acknowledged the cause"
        acknowledge(DEFAULT, BAD_VALUE, by="bob")
        record_failures(BAD_VALUE)
        assert self.counts_of().is_acknowledged

    def test_an_acknowledgement_holds_if_no_attempt_of_the_task_has_ended_in_between(self) -> None:
        record_failures(BAD_VALUE, seconds_ago=30 * 60)
        acknowledge(DEFAULT, BAD_VALUE, by="ann")
        FailureRollUp.objects.update(acknowledged_at=Now() - timedelta(minutes=29))
        record_ended_attempts("another.task", seconds_ago=15 * 60)
        record_ended_attempts(BAD_VALUE.task, seconds_ago=30 * 60)
        record_failures(BAD_VALUE)
        assert self.counts_of().is_acknowledged

    def test_an_acknowledgement_holds_after_a_pause_of_less_than_ten_minutes(self) -> None:
        record_failures(BAD_VALUE, seconds_ago=9 * 60)
        acknowledge(DEFAULT, BAD_VALUE, by="ann")
        FailureRollUp.objects.update(acknowledged_at=Now() - timedelta(minutes=9))
        record_ended_attempts(BAD_VALUE.task, seconds_ago=5 * 60)
        record_failures(BAD_VALUE)
        assert self.counts_of().is_acknowledged


def test_a_cause_has_the_first_and_the_last_deployment_in_which_it_failed(settings: Any) -> None:
    record_failures(UNAVAILABLE)
    settings.SKIPQUEUE = {"DEPLOYMENT": "4f2a"}
    record_failures(BAD_VALUE)
    settings.SKIPQUEUE = {"DEPLOYMENT": "5b3c"}
    record_failures(BAD_VALUE)
    record_failures(UNAVAILABLE)
    deployments = {
        counts.cause: (counts.first_deployment, counts.last_deployment) for counts in failing_causes(DEFAULT, limit=10)
    }
    assert deployments == {BAD_VALUE: ("4f2a", "5b3c"), UNAVAILABLE: ("", "5b3c")}


class TestLastMessages:
    @staticmethod
    def message_of_cause(**fields: Any) -> str | None:
        errors = [{"exception": BAD_VALUE.exception, "place": BAD_VALUE.place, "message": "no hunter2\nat all"}]
        record_failures(BAD_VALUE, job_id=make_failing(BAD_VALUE, **{"errors": errors, **fields}).pk)
        return last_messages(DEFAULT, failing_causes(DEFAULT, limit=10)).get(BAD_VALUE)

    def test_the_message_of_a_cause_is_the_first_line_without_secrets(self) -> None:
        assert self.message_of_cause(kwargs={"password": "hunter2"}) == f"no {MASK}"

    def test_there_is_no_message_if_the_last_error_of_the_job_has_another_cause(self) -> None:
        assert self.message_of_cause(errors=[{"exception": "builtins.KeyError", "message": "x"}]) is None
        Job.objects.all().delete()
        assert last_messages(DEFAULT, failing_causes(DEFAULT, limit=10)) == {}

    def test_there_is_no_message_if_the_arguments_are_too_large_to_be_read(self) -> None:
        assert self.message_of_cause(args=[[secrets.token_hex(20_000)]]) is None


def test_a_cause_that_was_last_seen_more_than_a_week_ago_is_left_out() -> None:
    record_failures(UNAVAILABLE, seconds_ago=7.1 * DAY)
    assert failing_causes(DEFAULT, limit=10) == []
    counts = failures_of(DEFAULT, UNAVAILABLE)
    assert counts is not None
    assert (counts.in_hour, counts.in_day, counts.in_week, counts.by_hour) == (0, 0, 0, {})
    assert failures_of(DEFAULT, BAD_VALUE) is None
