"""What the task of a drain does: nothing, or it sleeps."""

import os
import time

SECONDS = float(os.environ.get("BENCHMARKS_TASK_SECONDS", "0"))
"""How long it sleeps. The peers `celery_rabbitmq` and `carried` heed it."""


def work(_number: int) -> None:
    """Called by a task with its argument."""
    if SECONDS:
        time.sleep(SECONDS)
