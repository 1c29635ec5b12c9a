"""Tracebacks as text, for exceptions of every kind."""

import sys
from typing import Any

import pytest

from django_skipqueue.values import tracebacks
from django_skipqueue.values.tracebacks import formatted


class Unformattable(Exception):
    """An exception whose traceback cannot be formatted."""

    def __getattribute__(self, name: str) -> object:
        if name == "__notes__":
            raise KeyboardInterrupt
        return super().__getattribute__(name)


def test_an_exception_whose_traceback_cannot_be_formatted_has_a_text_instead() -> None:
    assert formatted(Unformattable()) == "<its traceback could not be formatted: KeyboardInterrupt>"
    assert "ValueError: no" in formatted(ValueError("no"))


def test_the_stack_of_a_task_contains_no_frames_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "EXECUTOR", __file__)

    def stack_of_task_called_by_package() -> str:
        names: dict[str, Any] = {"formatted_stack": tracebacks.formatted_stack, "sys": sys}
        code_of_package = compile(
            "def call_task():\n    return task()\n", f"{tracebacks.PACKAGE}execution/middleware.py", "exec"
        )
        code_of_task = compile("def task():\n    return formatted_stack(sys._getframe())\n", "/shop/jobs.py", "exec")
        exec(code_of_package, names)
        exec(code_of_task, names)
        stack: str = names["call_task"]()
        return stack

    assert stack_of_task_called_by_package() == '  File "/shop/jobs.py", line 2, in task\n'


def test_innermost_calls_returns_the_last_three_calls_on_one_line() -> None:
    calls = [f'  File "a.py", line {number}, in f\n    f({number})\n' for number in range(4)]
    stack = calls[0] + calls[1] + "  [Previous line repeated 9 more times]\n" + calls[2] + calls[3]
    assert tracebacks.innermost_calls(stack, 3) == (
        'File "a.py", line 1, in f > f(1) > [Previous line repeated 9 more times] > '
        'File "a.py", line 2, in f > f(2) > File "a.py", line 3, in f > f(3)'
    )
