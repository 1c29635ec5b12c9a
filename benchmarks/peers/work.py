"""The work of the task in a drain: nothing, or a sleep."""

import os
import time

SECONDS = float(os.environ.get("BENCHMARKS_TASK_SECONDS", "0"))
"""How long the task sleeps. Only the peers `celery_rabbitmq` and `carried` do so."""


def work(_number: int) -> None:
    """Sleep for the configured time. Called by a task with its argument."""
    if SECONDS:
        time.sleep(SECONDS)
