"""Which queues and tasks there are, to choose from, without reading the job table for them.

Known are the names in the code (registered tasks, and the queues they go to), those that workers listen to, those with
jobs to claim (one index probe each), and those of the newest and the last failed jobs.
"""

from .. import tasks as registered
from ..models import Job, Worker

SAMPLE = 1_000


def queue_names() -> list[str]:
    """The known queues, in alphabetical order."""
    names = {*Job.objects.queues_with_jobs(), *(task.options.queue_name for task in registered.tasks)}
    for served in Worker.objects.values_list("queues", flat=True):
        names.update(served)
    names.update(_sample("queue_name"))
    return sorted(names)


def task_names() -> list[str]:
    """The known tasks, in alphabetical order."""
    return sorted({*(task.name for task in registered.tasks), *_sample("task")})


def _sample(column: str) -> set[str]:
    newest = Job.objects.order_by("-id").values_list(column, flat=True)[:SAMPLE]
    failed = Job.objects.failed().order_by("-finished_at").values_list(column, flat=True)[:SAMPLE]
    return set(newest.union(failed, all=True))
