"""Measures the memory of a process."""

import os
import resource
import sys
from pathlib import Path

PROC = Path("/proc")

MEBIBYTE = 1024 * 1024


def resident_mb() -> float:
    """The resident size of this process in MiB; on a system without /proc, its maximum so far."""
    size = resident_bytes(os.getpid())
    if size is None:
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return largest / MEBIBYTE if sys.platform == "darwin" else largest / 1024  # bytes there, KiB elsewhere
    return size / MEBIBYTE


def resident_mb_of(pid: int) -> int | None:
    """The resident size of a process in whole MiB; `None` on a system without /proc, or if the process is gone."""
    size = resident_bytes(pid)
    return None if size is None else round(size / MEBIBYTE)


def resident_bytes(pid: int) -> int | None:
    """The resident size of a process; `None` on a system without /proc, or if the process is gone."""
    try:
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
