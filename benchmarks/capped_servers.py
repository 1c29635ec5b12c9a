"""PostgreSQL servers that may each use a share of a core alone, so that one machine shows what several would do.

The share is a control group's quota, of version 1 or 2: it takes root, and a kernel that has them.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from scripts.embedded_postgres import Server

PERIOD = 100_000
"""Microseconds over which the kernel counts what a group has used."""

ROOT = Path("/sys/fs/cgroup")


class CannotCap(Exception):
    """This machine has no control groups that this process may make."""


@contextmanager
def capped_servers(number: int, share: float) -> Iterator[list[Server]]:
    """Start so many servers, each with a share of a core. They and their data are gone at the end of the block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skipqueue-servers-")))
        servers = [Server(folder / f"{place}") for place in range(number)]
        for server in servers:
            server.home.mkdir()
            server.start()
            stack.enter_context(_group(server, share))
        yield servers


@contextmanager
def _group(server: Server, share: float) -> Iterator[None]:
    """Put the processes of a running server into a control group, which those that it forks later inherit."""
    version_1 = (ROOT / "cpu" / "cpu.cfs_quota_us").exists()
    group = (ROOT / "cpu" if version_1 else ROOT) / f"skipqueue-{server.home.parent.name}-{server.home.name}"
    quota = int(PERIOD * share)
    postmaster = psutil.Process(int((server.data / "postmaster.pid").read_text().split()[0]))
    try:
        group.mkdir()
        if version_1:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {PERIOD}")
        for process in (postmaster, *postmaster.children()):
            (group / "cgroup.procs").write_text(str(process.pid))
    except OSError as error:
        raise CannotCap(f"{error}") from error
    try:
        yield
    finally:
        server.stop()
        group.rmdir()
