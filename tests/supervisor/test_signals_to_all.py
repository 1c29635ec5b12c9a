"""A signal to all processes of a group at once may end an idle worker before its supervisor handles the signal."""

from collections.abc import Callable

import pytest

from ..harness.processes import ManagePy

RunWorker = Callable[..., ManagePy]
HOUR = "3600"

SLOW_SUPERVISOR = """
    import os, signal
    from django_skipqueue.supervisor.supervisor import Supervisor

    notice_ended = Supervisor._notice_ended
    done = []

    def signal_all_first(self):
        (process,) = self._workers
        if process.has_started and not done:
            done.append(True)
            os.killpg(0, signal.SIGTERM)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # wait until the worker has ended
        notice_ended(self)

    Supervisor._notice_ended = signal_all_first
"""


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_the_signal_ended_first_is_not_logged_as_died_or_replaced(runworker: RunWorker) -> None:
    process = runworker("--poll-interval", HOUR, jobs=SLOW_SUPERVISOR)
    assert process.wait() == 0
    assert process.log.count("supervisor stopping") == 1
    assert process.log.count("worker started") == 1
    assert "worker died" not in process.log
