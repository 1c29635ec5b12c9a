"""What the processes of a machine write, read from a pipe as a log collector reads it, which may stop reading.

Invariant: each line has the time at which it was read, by the clock of the runner.
"""

import fcntl
import os
import threading
import time
from pathlib import Path

from .evidence import Line

PIPE_SIZE = 4096
"""Bytes that fit into the pipe when nobody reads it: as few as the kernel allows, so that it is soon full."""


class Logbook:
    """The lines of one machine, from the first start to the last."""

    def __init__(self, machine: str) -> None:
        self.lines: list[Line] = []
        self._machine = machine
        self._reading = threading.Event()
        self._reading.set()

    def open(self) -> int:
        """A pipe to write to; a thread reads it until its last writer is gone. The caller closes its own end."""
        reads, writes = os.pipe()
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        threading.Thread(target=self._read, args=[reads], daemon=True).start()
        return writes

    def block(self) -> None:
        """Read no more: soon nothing more can be written."""
        self._reading.clear()

    def unblock(self) -> None:
        """Read on."""
        self._reading.set()

    def count(self, text: str) -> int:
        """In how many lines this stands."""
        return sum(text in line.text for line in self.lines)

    def save(self, folder: Path) -> None:
        """Write it into a file of this folder, for whoever looks into what went wrong."""
        text = "".join(f"{line.at:.3f} {line.text}\n" for line in self.lines)
        (folder / f"{self._machine}.log").write_text(text)

    def _read(self, file: int) -> None:
        rest = b""
        with open(file, "rb", buffering=0) as pipe:
            while data := pipe.read(PIPE_SIZE):
                *lines, rest = (rest + data).split(b"\n")
                self.lines += [Line(time.time(), self._machine, line.decode(errors="replace")) for line in lines]
                self._reading.wait()
