"""Clocks that can be set: libfaketime gives the processes of a machine, or of PostgreSQL, a time of day of their own.

Invariant: only the time of day is off. Monotonic time is left alone, as it is where a real clock is set.
"""

from collections.abc import Mapping
from pathlib import Path

FOLDER = next(Path("/usr/lib").glob("*/faketime"), None)
"""Debian's package `faketime`. Without it, clocks are left alone."""


class Clock:
    """The time of day of the processes that are started with its `environment`."""

    def __init__(self, file: Path, *, threads: bool) -> None:
        self._file = file
        self._library = "libfaketimeMT.so.1" if threads else "libfaketime.so.1"

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for those processes. They look at the file once a second."""
        if FOLDER is None:
            return {}
        return {
            "LD_PRELOAD": str(FOLDER / self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, seconds: float) -> None:
        """Have it be off by this much from now on."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{seconds:+g}\n")
        fresh.rename(self._file)
