"""Says that jobs wait for a worker that nobody has started, and what to type."""

import shlex
from dataclasses import dataclass

from django.db.models.functions import Now

from ..log_format import printable
from ..models import Job, Worker
from ..options import LONGEST_KEY
from ..payload import shorten

MOST = 20
"""Queues that are named at once; once those are served, it is the next ones' turn."""


@dataclass(frozen=True)
class Banner:
    """Jobs wait, and nobody will run them."""

    queue_names: tuple[str, ...]
    """The queues that wait; empty where no worker is alive at all, so that any worker helps."""

    @classmethod
    def now(cls) -> "Banner | None":
        """What has to be said, by the database's clock; mostly nothing."""
        waiting = Job.objects.queues_with_jobs()
        served = list(Worker.objects.live().values_list("queues", flat=True))
        if not served:
            return cls(()) if waiting or _is_overdue() else None
        if not all(served):  # a worker without a list serves every queue
            return None
        unserved = sorted(set(waiting).difference(*served))[:MOST]
        return cls(tuple(printable(shorten(name, LONGEST_KEY)) for name in unserved)) if unserved else None

    @property
    def command(self) -> str:
        """What to type, for a POSIX shell."""
        command = ["python", "manage.py", "runworker"]
        if self.queue_names:
            command += ["--queues", ",".join(self.queue_names)]
        return shlex.join(command)


def _is_overdue() -> bool:
    """Whether a scheduled job is due, which a supervisor would have promoted."""
    due = Job.objects.scheduled().filter(run_after__lte=Now()).order_by("run_after")
    return due.values_list("pk").first() is not None
