"""Measures the memory of this process."""

import os
import resource
import sys
from pathlib import Path

STATM = Path("/proc/self/statm")

MEBIBYTE = 1024 * 1024


def resident_mb() -> float:
    """The resident size in MiB; on a system without /proc, its maximum so far."""
    try:
        pages = int(STATM.read_text().split()[1])
    except OSError:
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return largest / MEBIBYTE if sys.platform == "darwin" else largest / 1024  # bytes there, KiB elsewhere
    return pages * os.sysconf("SC_PAGE_SIZE") / MEBIBYTE
