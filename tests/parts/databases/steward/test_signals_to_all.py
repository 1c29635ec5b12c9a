"""A signal to all processes at once, by which workers end before the steward tells their supervisors to stop."""

import signal
from collections.abc import Callable

import pytest

from django_skipqueue.models import Job

from ....app.rows import make_job
from ....app.waiting import wait_until
from ....harness.processes import ManagePy

Run = Callable[..., ManagePy]
HOUR = "3600"

SLOW_STEWARD = """
    import psutil
    from django_skipqueue.parts.databases.steward import Steward
    from django_skipqueue.supervisor import supervisor

    supervisor.COMMAND_TIME = 60.0
    handle_signals = Steward._handle_signals

    def wait_and_handle_signals(self):
        if self._signals and not self._stopping:
            steward = psutil.Process()
            workers = [child for child in steward.children(recursive=True) if child.ppid() != steward.pid]
            psutil.wait_procs(workers)  # a worker is gone once its supervisor has noticed its end
        handle_signals(self)

    Steward._handle_signals = wait_and_handle_signals
"""


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_supervisor_that_waits_for_the_steward_reports_no_dead_worker(runworker: Run) -> None:
    for alias in ("default", "other"):
        make_job(using=alias)
    process = runworker("--poll-interval", HOUR, jobs=SLOW_STEWARD, skipqueue={"DATABASES": ("default", "other")})
    for alias in ("default", "other"):  # a row of the worker may be older than its signal handlers
        wait_until(Job.objects.using(alias).completed().exists, f"a worker of {alias} has begun to work")
    process.send_to_group(signal.SIGTERM)
    assert process.wait() == 0
    assert process.log.count("worker started") == 2
    assert "worker died" not in process.log
