"""Clocks that can be set: libfaketime gives the processes of a machine, or of PostgreSQL, another time of day.

Invariant: only the time of day is changed. Monotonic time stays right, as when somebody sets a real clock.
"""

from collections.abc import Mapping
from pathlib import Path

FOLDER = next(Path("/usr/lib").glob("*/faketime"), None)
"""The folder of Debian's package `faketime`. Without it, no clock is changed."""


class Clock:
    """The time of day of the processes that are started with its `environment`."""

    def __init__(self, file: Path, *, threads: bool) -> None:
        self._file = file
        self._library = "libfaketimeMT.so.1" if threads else "libfaketime.so.1"

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables of the processes that use this clock. They read the file once a second."""
        if FOLDER is None:
            return {}
        return {
            "LD_PRELOAD": str(FOLDER / self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, seconds: float) -> None:
        """From now on, let the clock be wrong by this number of seconds."""
        new_file = self._file.with_suffix(".new")
        new_file.write_text(f"{seconds:+g}\n")
        new_file.rename(self._file)
