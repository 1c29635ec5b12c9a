"""The option `rate`: which values it accepts, and which values it refuses."""

import pytest

from django_skipqueue import job, rate, with_options
from django_skipqueue.exceptions import InvalidArguments, InvalidOption
from django_skipqueue.models import Job
from django_skipqueue.testing import run_jobs
from django_skipqueue.values.settings import rate_text

from ...app.rates.jobs import burst_of_three, hundred_a_minute, shares_rate
from ...harness.processes import statuses


@pytest.mark.parametrize(
    ("text", "interval", "burst"),
    [
        ("50/s", 0.02, 50),
        ("100/m", 0.6, 1),
        ("300/m", 0.2, 5),
        ("10/h", 360.0, 1),
        ("1/d", 86_400.0, 1),
        ("3/10s", 10 / 3, 1),
        ("10000/s", 0.0001, 10_000),
        ("1/366d", 366 * 86_400.0, 1),
    ],
)
def test_the_text_of_a_rate_is_read_as_an_interval_and_a_burst(text: str, interval: float, burst: int) -> None:
    parsed = rate(text)
    assert parsed.interval == pytest.approx(interval)
    assert parsed.burst == burst
    assert rate(text, burst=7).burst == 7


@pytest.mark.parametrize(
    "text",
    ["", "100", "100/", "/m", "0/m", "1/0s", "-1/m", "1.5/s", "100/min", "10001/s", "1/367d", "1 / s", 5, None],
)
def test_an_invalid_rate_is_refused(text: object) -> None:
    with pytest.raises(InvalidOption, match="rate takes"):
        rate(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("burst", [0, -1, True, 1.5, 10_001, "2"])
def test_an_invalid_burst_is_refused(burst: object) -> None:
    with pytest.raises(InvalidOption, match="burst must be"):
        rate("1/s", burst=burst)  # type: ignore[arg-type]


def test_an_invalid_name_of_a_rate_is_refused() -> None:
    with pytest.raises(InvalidOption, match="names of arguments"):
        rate("1/s", by=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="name of rate"):
        rate("1/s", name="")


def test_the_option_rate_refuses_a_plain_string() -> None:
    with pytest.raises(InvalidOption, match="rate must be rate"):
        job(rate="100/m")  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match="rate must be rate"):
        with_options(rate="100/m")  # type: ignore[arg-type]


def test_a_rate_by_an_argument_that_the_task_does_not_have_is_refused() -> None:
    def send(order_id: int) -> None: ...

    send.__module__, send.__qualname__ = "tests.parts.rates.test_rate_options", "send"
    with pytest.raises(InvalidOption, match="by names the argument 'tenant', and the task has order_id"):
        job(rate=rate("1/s", by="tenant"))(send)


def test_a_rate_key_has_the_values_of_the_arguments() -> None:
    call = hundred_a_minute.encoded((7,), {})
    assert call.columns["rate_key"] == "rate:tests.app.rates.jobs.hundred_a_minute tenant=7"
    assert (call.columns["rate_interval"], call.columns["rate_burst"], call.columns.get("limit_key")) == (
        0.6,
        1,
        None,
    )
    assert shares_rate.encoded((), {}).columns["rate_key"] == "rate:bank"


def test_a_call_without_the_argument_of_the_key_is_refused() -> None:
    with pytest.raises(InvalidArguments):
        hundred_a_minute.encoded((), {})


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("50/s", "50/s"),
        ("100/m", "100/m"),
        ("60/m", "1/s"),
        ("10/h", "10/h"),
        ("1/d", "1/d"),
        ("1/3d", "1/3d"),
        ("3/10s", "18/m"),
        ("1/90s", "40/h"),
        ("1/7m", "1/7m"),
    ],
)
def test_an_interval_is_written_as_the_text_of_a_rate(text: str, expected_text: str) -> None:
    assert rate_text(rate(text).interval) == expected_text
    assert rate(rate_text(rate(text).interval)).interval == pytest.approx(rate(text).interval)


@pytest.mark.django_db
def test_run_jobs_runs_jobs_with_a_token_and_with_include_scheduled_all_jobs() -> None:
    """The transaction of a test never commits, and jobs are admitted only after a commit."""
    burst_of_three.defer_many([(7,)] * 5)
    assert statuses() == {"blocked": 5}
    assert len(run_jobs()) == 3
    assert statuses() == {"completed": 3, "blocked": 2}
    assert len(run_jobs(include_scheduled=True)) == 2
    assert statuses() == {"completed": 5}
    assert not Job.objects.blocked().exists()
