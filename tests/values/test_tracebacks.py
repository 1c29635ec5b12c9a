"""A traceback as text, whatever the exception is like."""

from django_skipqueue.values.tracebacks import formatted


class Unformattable(Exception):
    def __getattribute__(self, name: str) -> object:
        if name == "__notes__":
            raise KeyboardInterrupt
        return super().__getattribute__(name)


def test_an_exception_that_breaks_its_traceback_costs_nobody_the_outcome() -> None:
    assert formatted(Unformattable()) == "<its traceback could not be formatted: KeyboardInterrupt>"
    assert "ValueError: no" in formatted(ValueError("no"))
