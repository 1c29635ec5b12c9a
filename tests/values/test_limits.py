"""Each number has one allowed range, which holds for settings, options of tasks and options of `runworker`."""

import io
from contextlib import redirect_stderr
from dataclasses import fields
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_skipqueue import conf
from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.values.bounds import NUMBER_RANGES, NumberRange, check_columns, whole


@pytest.mark.parametrize(
    ("number_range", "value", "is_allowed"),
    [
        (NumberRange(0, 5), 0, True),
        (NumberRange(0, 5), 5.0, True),
        (NumberRange(0, 5), 5.1, False),
        (NumberRange(0, 5), -0.1, False),
        (NumberRange(0, 5, above=True), 0, False),
        (NumberRange(0, 5, above=True), 0.001, True),
        (NumberRange(0, 5), float("nan"), False),
        (NumberRange(0, 5), float("inf"), False),
        (NumberRange(0, 5), True, False),
        (NumberRange(0, 5), "3", False),
        (NumberRange(0, 5), None, False),
        (whole(1, 5), 3, True),
        (whole(1, 5), 3.0, False),
        (whole(0, 5), False, False),
    ],
)
def test_a_number_range_allows_only_numbers_within_it(number_range: NumberRange, value: Any, is_allowed: bool) -> None:
    assert number_range.allows(value) is is_allowed


def test_each_number_setting_has_a_range_that_allows_its_default() -> None:
    number_settings = [setting for setting in fields(conf.Settings) if type(setting.default) in (int, float)]
    assert number_settings
    for setting in number_settings:
        if "problems" in setting.metadata:  # the setting of a part has its own check
            assert list(setting.metadata["problems"](setting.name, setting.default)) == []
        else:
            assert NUMBER_RANGES[setting.name].allows(setting.default)


@pytest.mark.parametrize("name", ["poll_interval", "worker_timeout", "shutdown_timeout"])
def test_a_setting_and_the_option_of_runworker_have_the_same_range(name: str) -> None:
    number_range = NUMBER_RANGES[name]
    for value in (number_range.least - 1, number_range.most + 1):
        with override_settings(SKIPQUEUE={name.upper(): value}):
            (problem,) = conf.problems()
        assert str(number_range) in problem
        with redirect_stderr(io.StringIO()), pytest.raises(CommandError, match=str(number_range)):
            call_command("runworker", f"--{name.replace('_', '-')}={value}")


@pytest.mark.parametrize("value", [0, 32_768])
def test_a_setting_and_the_option_of_a_task_have_the_same_range(value: int) -> None:
    with override_settings(SKIPQUEUE={"MAX_ATTEMPTS": value}):
        (problem,) = conf.problems()
    with pytest.raises(InvalidOption) as error_info:
        check_columns({"max_attempts": value})
    assert problem == f"SKIPQUEUE['MAX_ATTEMPTS']{str(error_info.value).removeprefix('max_attempts')}"
