"""Django's own tests of its task framework, run unchanged against the backend of this package."""

import os

import pytest

from . import sources
from .adapter import LEFT_OUT, run_all


@pytest.mark.django_db(transaction=True)
def test_djangos_own_tests_pass_except_those_left_out_for_a_reason() -> None:
    try:
        folder = sources.folder()
    except sources.Unreachable as error:
        if os.environ.get(sources.REQUIRED) == "1":
            raise
        pytest.skip(f"Django's own tests could not be fetched: {error}")

    result, ran, left_out = run_all(folder)

    problems = [f"{test}\n{trace}" for test, trace in result.errors + result.failures]
    assert not problems, "\n\n".join(problems)
    assert not result.skipped
    assert result.testsRun == len(ran)
    assert len(ran) > 65  # so that not nearly all tests are left out
    assert left_out == set(LEFT_OUT), f"left out, but not among Django's tests any more: {set(LEFT_OUT) - left_out}"
