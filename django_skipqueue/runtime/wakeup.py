"""Lets a control loop wait for a call from another thread, a signal, a socket or a time.

Invariant: a call between the check for work and the sleep is not missed. While the loop is awake, a call makes no
system call.
"""

import contextlib
import os
import selectors
import signal
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any


class Wakeup:
    """One for each control loop. `call` may be used by any thread; everything else by the loop's thread alone."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._asleep = False

    def on_signals(self, handler: Callable[[int], None], signals: Iterable[signal.Signals]) -> None:
        """Run `handler` on these signals, and end a wait. The handler should only set a flag."""

        def handle(number: int, _: FrameType | None) -> None:
            handler(number)

        for number in signals:
            signal.signal(number, handle)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)

    def call(self) -> None:
        """End the wait that is under way, if there is one."""
        if self._asleep:
            self._asleep = False
            with contextlib.suppress(BlockingIOError):  # the pipe is full of calls: the loop will wake
                os.write(self._write_end, b"\0")

    def wait(
        self, timeout: float, *, unless: Callable[[], Any] = lambda: False, files: Iterable[int] = ()
    ) -> list[int]:
        """Sleep up to `timeout` seconds, unless `unless()` is true. Returns those of `files` that can be read."""
        self._asleep = True  # before `unless()`: work that comes later makes a call
        try:
            if unless():
                return self._look(0, files)
            return self._look(timeout, files)
        finally:
            self._asleep = False

    def close(self) -> None:
        """Close the pipe, in a forked child that makes its own Wakeup."""
        signal.set_wakeup_fd(-1)
        os.close(self._read_end)
        os.close(self._write_end)

    def _look(self, timeout: float, files: Iterable[int]) -> list[int]:
        with selectors.PollSelector() as selector:  # creating an epoll for each wait would cost ten times as much
            for file in (self._read_end, *files):
                selector.register(file, selectors.EVENT_READ)
            ready = [key.fd for key, _ in selector.select(max(timeout, 0))]
        if self._read_end in ready:
            ready.remove(self._read_end)
            self._empty()
        return ready

    def _empty(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read_end, 4096):
                pass
