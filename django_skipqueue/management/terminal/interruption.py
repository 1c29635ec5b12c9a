"""Ctrl-C in a command that works in batches."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def until_interrupted() -> Iterator[Callable[[], bool]]:
    """Within this block, the first Ctrl-C makes the function true, so that a batch ends well; a second one raises."""
    is_interrupted = False

    def interrupt(number: int, _frame: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        signal.signal(number, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield lambda: is_interrupted
    finally:
        signal.signal(signal.SIGINT, before)
