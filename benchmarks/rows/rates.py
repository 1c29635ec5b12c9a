"""Jobs with rates: how much slower they are, and how late a job starts after the time at which its rate allows it."""

from collections.abc import Sequence
from dataclasses import dataclass

from django_skipqueue.models import Job

from .. import jobs
from ..figures import Figures, percentile
from ..sizes import Sizes
from ..workers import drain, running_worker, wait_until

INTERVAL, BURST = 0.02, 50
"""The interval and the burst of the task `fifty`."""


@dataclass(frozen=True)
class Keys:
    """Stands for the task `rated`. It gives its jobs this number of keys in turn."""

    number: int

    def defer_many(self, calls: Sequence[tuple[int]]) -> None:
        """Defer a job for each number."""
        jobs.rated.defer_many([(number % self.number,) for (number,) in calls])


def rates(sizes: Sizes) -> Figures:
    """Drain of jobs whose rate is far above the speed, of 1,000 keys ÷ a plain one; the delay after a slot of 50/s."""
    plain, rated = (drain(task, sizes.jobs)["jobs/s"] for task in (jobs.noop, Keys(1_000)))
    late = _lateness(BURST + min(sizes.jobs, 500))
    return {
        "jobs/s of 1,000 keys": rated,
        "of the plain drain": rated / plain,
        "ms after the slot": percentile(late, 0.5),
        "ms after the slot (p99)": percentile(late, 0.99),
    }


def _lateness(count: int) -> list[float]:
    """For each job, the milliseconds from the time at which its rate allows it to its start.

    The burst may start at once, and then one job after each interval.
    """
    with running_worker():
        wait_until(lambda: jobs.clock.defer() and Job.objects.completed().filter(task=jobs.clock.name).exists())
        wait_until(lambda: not Job.objects.unfinished().exists())
        ids = jobs.fifty.defer_many([()] * count)
        wait_until(lambda: not Job.objects.unfinished().exists())
    found = Job.objects.filter(pk__in=ids).values_list("result", flat=True)
    first, *starts = sorted(float(str(start)) for start in found)
    Job.objects.all().delete()
    slots = enumerate(starts[BURST - 1 :], start=1)
    return [max(0.0, start - first - number * INTERVAL) * 1000 for number, start in slots]
