"""For the tests of projects that use the queue: `run_jobs` runs deferred jobs in the test's thread and transaction.

The jobs are real rows, and are claimed, executed and settled by the real code; only processes and threads are left out.
"""

from collections.abc import Sequence

from .conf import settings
from .execution.executor import Executor
from .models import Job
from .running import run_attempt
from .store import Store

WORKER = "test"


def run_jobs(*, queue_names: Sequence[str] | None = None, due_by_force: bool = False, limit: int = 1_000) -> list[Job]:
    """Run queued jobs, and the jobs that these defer, until none is left. Returns the jobs as they are afterwards.

    queue_names: only these queues, in this order; default: all.
    due_by_force: run scheduled jobs as well, retries among them: makes them due by `run_now`.
    limit: raise RuntimeError after this many attempts, so that jobs that defer each other for ever do not run on.
    """
    store = Store(settings.database)
    jobs = Job.objects.using(settings.database)
    executor = Executor(worker=WORKER, database=settings.database)
    ran: list[int] = []
    while True:
        if due_by_force:
            jobs.scheduled().run_now(by="run_jobs")
        queues = store.queues_with_jobs() if queue_names is None else queue_names
        claimed = store.claim(queue_names=queues, limit=1, worker_id=WORKER)
        if not claimed:
            found = jobs.in_bulk(ran)
            return [found[id] for id in dict.fromkeys(ran) if id in found]
        if len(ran) == limit:
            store.release([job.ref for job in claimed])
            raise RuntimeError(f"{limit} attempts were made and there are still jobs to run.")
        ran.append(claimed[0].id)
        store.settle([run_attempt(executor, claimed[0]).settlement])
