"""End attempts as the death of their worker does: `crash_after`, and for the fixture `kill_after` a real SIGKILL."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import connections

from ..exceptions import CrashedByTest
from ..queue.store import in_each
from ..values.part import installed_parts
from .run import TEST_WORKER_ID, run_jobs


@contextmanager
def crash_after(step: str, *, times: int = 1) -> Iterator[None]:
    """End the attempt once the step of this name is recorded, and recover its job, which `run_jobs` then runs again.

    times: how often. Raises `AssertionError` at the end of the block if no attempt has come to the step.
    """
    crashed = 0

    def crash() -> None:
        nonlocal crashed
        if crashed < times:
            crashed += 1
            raise CrashedByTest(f"crash_after({step!r}) ended the attempt")

    with _calling_after(step, crash):
        yield
    if not crashed:
        raise AssertionError(f"No attempt has recorded a step {step!r} in this block.")


def run_jobs_and_kill(step: str, **options: Any) -> None:
    """Run the queued jobs in another process, which is killed once it has recorded the step of this name.

    Returns when the process is dead, and its jobs are recovered. Needs jobs that are committed. options: of `run_jobs`.
    """
    connections.close_all()
    child_pid = os.fork()
    if not child_pid:  # this is the child process
        try:
            with _calling_after(step, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                run_jobs(**options)
        finally:
            os._exit(1)
    _, status = os.waitpid(child_pid, 0)
    if not os.WIFSIGNALED(status):
        raise AssertionError(f"No attempt has recorded a step {step!r}: the jobs have run without it, or have failed.")
    reason = f"kill_after({step!r}) killed the process"
    in_each(None, lambda store: store.recover(worker_ids=[TEST_WORKER_ID], reason=reason))


@contextmanager
def _calling_after(step: str, call: Callable[[], None]) -> Iterator[None]:
    with ExitStack() as stack:
        for part in installed_parts():
            if part.after_step is not None:
                stack.enter_context(part.after_step(step, call))
        yield
