"""Tracebacks as text, for exceptions of every kind."""

import sys
from typing import Any

import pytest

from django_skipqueue.values import tracebacks
from django_skipqueue.values.tracebacks import formatted


class Unformattable(Exception):
    def __getattribute__(self, name: str) -> object:
        if name == "__notes__":
            raise KeyboardInterrupt
        return super().__getattribute__(name)


def test_an_exception_that_breaks_its_traceback_costs_nobody_the_outcome() -> None:
    assert formatted(Unformattable()) == "<its traceback could not be formatted: KeyboardInterrupt>"
    assert "ValueError: no" in formatted(ValueError("no"))


def test_the_stack_of_a_task_begins_below_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "EXECUTOR", __file__)

    def frame_of_library() -> str:
        names: dict[str, Any] = {"formatted_stack": tracebacks.formatted_stack, "sys": sys}
        own = compile("def within():\n    return task()\n", f"{tracebacks.PACKAGE}execution/middleware.py", "exec")
        theirs = compile("def task():\n    return formatted_stack(sys._getframe())\n", "/shop/jobs.py", "exec")
        exec(own, names)
        exec(theirs, names)
        stack: str = names["within"]()
        return stack

    assert frame_of_library() == '  File "/shop/jobs.py", line 2, in task\n'


def test_the_innermost_calls_are_whole() -> None:
    calls = [f'  File "a.py", line {number}, in f\n    f({number})\n' for number in range(4)]
    stack = calls[0] + calls[1] + "  [Previous line repeated 9 more times]\n" + calls[2] + calls[3]
    assert tracebacks.innermost_calls(stack, 3) == (
        'File "a.py", line 1, in f > f(1) > [Previous line repeated 9 more times] > '
        'File "a.py", line 2, in f > f(2) > File "a.py", line 3, in f > f(3)'
    )
