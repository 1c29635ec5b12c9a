"""The work of the task in a drain: nothing, or a sleep. The work of a workflow: steps."""

import os
import time
from collections.abc import Callable

from . import marks

SECONDS = float(os.environ.get("BENCHMARKS_TASK_SECONDS", "0"))
"""How long the task sleeps. Only the peers `celery_rabbitmq` and `carried` do so."""


def work(_number: int) -> None:
    """Sleep for the configured time. Called by a task with its argument."""
    if SECONDS:
        time.sleep(SECONDS)


def in_steps(step: Callable[[int], object], number: int, steps: int) -> None:
    """Call the steps of a workflow, and leave a mark before the first step and a mark after the last step."""
    marks.leave(2 * number)
    for each in range(steps):
        step(each)
    marks.leave(2 * number + 1)
