"""`skipqueue limits`, and what `skipqueue status` shows of limits."""

import re
from typing import Any

import pytest

from django_skipqueue import job, limit
from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.jobs.registry import Registry

from ...app.limit_rows import make_halted, make_keyed, make_limited, make_rated
from ...app.rows import make_job
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)


def pay_with_token(token: str) -> None:
    """A task with a secret in the key of its limit."""


def status_json() -> dict[str, Any]:
    (status,) = skipqueue("status", "--json").objects
    return status


def test_the_command_lists_halted_sequences_and_then_the_keys_alphabetically() -> None:
    make_limited("limit:b", held=2, waiting=3, minutes=10)
    make_limited("limit:a")
    failed = make_halted("sequence:t order=7", minutes=12)
    result = skipqueue("limits")
    assert result.code == 0
    first, second, third = result.out.splitlines()[1:]
    assert re.match(rf"sequence:t order=7 +sequence +halted: job {failed.pk} failed 12\S+ ago +1 +1 +1 ", first)
    assert second.startswith("limit:a")
    assert re.match(r"limit:b +limit +waits +2 +2 +3 +10", third)


def test_the_command_prints_json() -> None:
    failed_job = make_halted("sequence:t", waiting=2)
    [shown_key] = skipqueue("limits", "--json").objects
    assert shown_key["oldest_seconds"] == pytest.approx(150, abs=30)
    assert shown_key["halted_seconds"] == pytest.approx(300, abs=30)
    assert {name: shown_key[name] for name in ("key", "kind", "capacity", "held", "waiting", "halted_by_job")} == {
        "key": "sequence:t",
        "kind": "halting",
        "capacity": 1,
        "held": {"count": 1, "or_more": False},
        "waiting": {"count": 2, "or_more": False},
        "halted_by_job": failed_job.pk,
    }


def test_the_number_of_listed_keys_can_be_limited() -> None:
    for key in "abc":
        make_limited(key)
    result = skipqueue("limits", "--limit", "2")
    assert [line[0] for line in result.out.splitlines()[1:]] == ["a", "b"]
    assert "--limit lists more" in result.err
    assert "not a whole number above 0" in skipqueue("limits", "--limit", "0").err


def test_the_command_exits_with_3_if_no_job_waits_for_a_permit() -> None:
    make_keyed("limit:t", "running")
    result = skipqueue("limits")
    assert (result.code, result.out) == (3, "")
    assert "No job waits for a limit or a rate." in result.err


class TestOneKey:
    def test_the_jobs_of_a_key_are_listed(self) -> None:
        holder, waiting = make_keyed("k", "running"), make_keyed("k")
        make_keyed("other")
        lines = skipqueue("limits", "k").out.splitlines()
        assert [line.split()[0] for line in lines if line] == ["key", "k", "id", str(holder.pk), str(waiting.pk)]

    def test_one_key_is_printed_as_json(self) -> None:
        holder, waiting = make_keyed("k", "running"), make_keyed("k")
        (shown_key,) = skipqueue("limits", "k", "--json").objects
        assert (shown_key["key"], shown_key["held_by"], shown_key["next_jobs"]) == ("k", [holder.pk], [waiting.pk])

    def test_a_key_without_a_waiting_job_is_shown_with_its_holders(self) -> None:
        holder = make_keyed("k", "running")
        assert [line.split()[0] for line in skipqueue("limits", "k").out.splitlines()] == ["id", str(holder.pk)]

    def test_a_key_that_no_job_holds_is_an_error(self) -> None:
        make_keyed("k", "completed")
        result = skipqueue("limits", "k\x1b[31m")
        assert result.code == Exit.ERROR
        assert "No job holds a permit of the key" in result.err
        assert "\x1b" not in result.err


def test_a_key_with_escape_sequences_cannot_control_the_terminal() -> None:
    make_limited("\x1b[31mred")
    for arguments in ([], ["\x1b[31mred"]):
        assert skipqueue("limits", *arguments).out.replace("\n", "").isprintable()


def test_a_secret_in_a_key_is_masked(registry: Registry) -> None:
    job(name="shop.pay", concurrency=limit(1, by="token"))(pay_with_token)
    key = 'limit:shop.pay token="tok-4711"'
    make_keyed(key, task="shop.pay", kwargs={"token": "tok-4711"})
    for arguments in ([], [key]):
        for form in ([], ["--json"]):
            assert "tok-4711" not in skipqueue("limits", *arguments, *form).out


class TestStatus:
    def test_the_status_shows_blocked_jobs_and_halted_sequences(self) -> None:
        failed = make_halted("sequence:t", waiting=2, minutes=12, queue_name="mail")
        make_job(queue_name="mail")
        (queue,) = status_json()["queues"]
        assert queue["blocked"] == {"count": 2, "or_more": False}
        assert status_json()["halted_sequences"] == {"count": 1, "or_more": False}
        out = skipqueue("status").out
        assert re.search(r"^queue .* blocked .*\nmail +1 +\S+ +2 ", out, re.MULTILINE)
        assert f"Halted sequences: 1 (job {failed.pk} failed 12" in out

    def test_a_queue_with_nothing_but_blocked_jobs_is_shown(self) -> None:
        make_limited("k", held=0, waiting=2, queue_name="mail")
        assert [(queue["queue"], queue["blocked"]["count"]) for queue in status_json()["queues"]] == [("mail", 2)]

    def test_the_status_without_halted_sequences_does_not_mention_them(self) -> None:
        make_job()
        out = skipqueue("status").out
        assert "Halted" not in out
        assert "Blocked" not in out
        assert status_json()["halted_sequences"]["count"] == 0


class TestRates:
    def test_rates_come_after_the_limits(self) -> None:
        make_limited("limit:a")
        make_rated("rate:b", waiting=3, minutes=10)
        result = skipqueue("limits")
        assert result.code == 0
        lines = result.out.splitlines()
        assert lines[1].startswith("limit:a")
        assert lines[3].split("  ")[0] == "key"
        assert re.search(r" rate +tokens now +jobs wait +next admitted +oldest job$", lines[3])
        assert re.match(r"rate:b +1/m +1 +3 +10", lines[4])

    def test_without_limits_the_command_lists_only_rates(self) -> None:
        make_rated("rate:b")
        [shown_rate] = skipqueue("limits", "--json").objects
        assert {name: shown_rate[name] for name in ("key", "kind", "rate", "burst", "tokens", "due_in_seconds")} == {
            "key": "rate:b", "kind": "rate", "rate": "1/m", "burst": 1, "tokens": 1, "due_in_seconds": None,
        }  # fmt: skip

    def test_one_rate_is_shown_with_its_jobs(self) -> None:
        jobs = make_rated("rate:b", waiting=2)
        out = skipqueue("limits", "rate:b").out
        assert all(str(job.pk) in out for job in jobs)
        [shown_rate] = skipqueue("limits", "rate:b", "--json").objects
        assert (shown_rate["next_jobs"], shown_rate["rate"]["rate"]) == ([job.pk for job in jobs], "1/m")
