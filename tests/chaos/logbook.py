"""Reads the log output of a machine's processes from a pipe, as a log collector does, and can stop reading for a while.

Invariant: each line has the time at which it was read, by the clock of the process that runs the scenario.
"""

import fcntl
import os
import threading
import time
from pathlib import Path

from .evidence import Line

PIPE_SIZE = 4096
"""The size of the pipe in bytes: as small as the kernel allows, so that the pipe is soon full when nobody reads."""


class Logbook:
    """The log lines of one machine during a whole scenario."""

    def __init__(self, machine: str) -> None:
        self.lines: list[Line] = []
        self._machine = machine
        self._reading = threading.Event()
        self._reading.set()

    def open(self) -> int:
        """Make a pipe that a thread reads until its last writer is gone. The caller closes the returned writing end."""
        reading_end, writing_end = os.pipe()
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(writing_end, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        threading.Thread(target=self._read, args=[reading_end], daemon=True).start()
        return writing_end

    def block(self) -> None:
        """Stop reading, so that the pipe is soon full."""
        self._reading.clear()

    def unblock(self) -> None:
        """Continue to read."""
        self._reading.set()

    def count(self, text: str) -> int:
        """The number of lines that contain this text."""
        return sum(text in line.text for line in self.lines)

    def save(self, folder: Path) -> None:
        """Write the lines into a file of this folder, to analyse a failed scenario."""
        text = "".join(f"{line.at:.3f} {line.text}\n" for line in self.lines)
        (folder / f"{self._machine}.log").write_text(text)

    def _read(self, file: int) -> None:
        unfinished_line = b""
        with open(file, "rb", buffering=0) as pipe:
            while data := pipe.read(PIPE_SIZE):
                *lines, unfinished_line = (unfinished_line + data).split(b"\n")
                self.lines += [Line(time.time(), self._machine, line.decode(errors="replace")) for line in lines]
                self._reading.wait()
