"""PostgreSQL servers that may each use only a share of a core, so that one machine behaves like several.

The share is the quota of a control group (of version 1 or 2). Only root can make one.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from scripts.embedded_postgres import Server

PERIOD = 100_000
"""The period, in microseconds, over which the kernel counts the processor time that a group has used."""

ROOT = Path("/sys/fs/cgroup")


class CannotCap(Exception):
    """This process cannot make control groups on this machine."""


@contextmanager
def capped_servers(number: int, share: float) -> Iterator[list[Server]]:
    """Start this number of servers, each with a share of a core. They and their data are removed after the block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skipqueue-servers-")))
        servers = [Server(folder / f"{index}") for index in range(number)]
        for server in servers:
            server.home.mkdir()
            server.start()
            stack.enter_context(_group(server, share))
        yield servers


@contextmanager
def _group(server: Server, share: float) -> Iterator[None]:
    """Put the processes of a running server into a control group. Processes that it forks later are in it too."""
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
