"""How much fairness slows a drain down, and how long a job waits beside many jobs of another tenant."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from django_skipqueue.models import Job

from ..figures import Figures
from ..jobs import fair_work, noop
from ..sizes import Sizes
from ..workers import drain, fill, running_worker, wait_until


@dataclass(frozen=True)
class Tenants:
    """Stands for the task `fair_work`. It defers jobs for this number of tenants in turn."""

    number: int
    milliseconds: int = 0

    def defer_many(self, calls: Sequence[tuple[int]]) -> None:
        """Defer a job for each number."""
        fair_work.defer_many([(f"tenant {number % self.number}", self.milliseconds) for (number,) in calls])


def fair(sizes: Sizes) -> Figures:
    """Drain of jobs with `fair_by`, of one tenant and of 1,000, and what share of a plain drain that is."""
    plain, one, many = (drain(task, sizes.jobs)["jobs/s"] for task in (noop, Tenants(1), Tenants(1_000)))
    return {
        "jobs/s of one tenant": one,
        "of the plain drain": one / plain,
        "jobs/s of 1,000 tenants": many,
        "of the plain drain by 1,000 tenants": many / plain,
    }


def fair_wait(sizes: Sizes) -> Figures:
    """A job beside twice as many of another tenant: time from its enqueue to its start, the worst of five."""
    return {
        f"ms beside jobs of {milliseconds} ms on {4 * processes} slots": _wait(sizes, milliseconds, processes)
        for milliseconds in (0, 50)
        for processes in (1, 4)
    }


def _wait(sizes: Sizes, milliseconds: int, processes: int) -> float:
    last = fill(Tenants(1, milliseconds), 2 * sizes.jobs)
    others = Job.objects.filter(id__gt=last)
    waits = []
    with running_worker("--processes", str(processes), "--concurrency", "4"):
        wait_until(others.completed()[100:101].exists)
        for _ in range(5):
            lone = fair_work.defer("another", milliseconds)
            wait_until(partial(Job.objects.filter(pk=lone.pk).completed().exists))
            lone.refresh_from_db()
            if lone.started_at is not None:
                waits.append((lone.started_at - lone.enqueued_at).total_seconds() * 1000)
        if not others.unfinished().exists():
            raise RuntimeError("The other tenant had no job left: give a larger number of --jobs.")
    Job.objects.all().delete()
    return max(waits)
