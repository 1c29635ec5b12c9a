"""The known queues and tasks, for filters and for suggestions, found without reading the job table.

They are the names in the code (registered tasks but the package's own, and the queues of all), the queues of workers,
the queues with jobs to claim (one index probe each), and the names in the newest and the last failed jobs.
"""

from django.db.models.functions import Left

from ..jobs.registry import registry
from ..models import Job, Worker
from ..queue.store import Store

SAMPLE = 1_000

LONGEST = 200
"""The longest name to choose from, in characters. A thousand longer ones would fill the page."""


def queue_names() -> list[str]:
    names = {*Store.default().queues_with_jobs(with_paused=True), *(task.options.queue_name for task in registry)}
    for served in Worker.objects.values_list("queues", flat=True):
        names.update(served)
    names.update(_sample("queue_name"))
    return sorted(name for name in names if len(name) <= LONGEST)


def task_names() -> list[str]:
    return sorted({*(task.name for task in registry if not task.is_internal), *_sample("task")})


def _sample(column: str) -> set[str]:
    name = Left(column, LONGEST + 1)
    newest = Job.objects.order_by("-id").values_list(name, flat=True)[:SAMPLE]
    failed = Job.objects.failed().order_by("-finished_at").values_list(name, flat=True)[:SAMPLE]
    return {name for name in newest.union(failed, all=True) if len(name) <= LONGEST}
