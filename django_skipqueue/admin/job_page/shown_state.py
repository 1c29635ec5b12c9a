"""The state of a job, as its own page and the page of a bulk action show it."""

from dataclasses import dataclass
from datetime import datetime

from ...models import Job, Status
from ...operators.job_states import STATES, state_of


@dataclass(frozen=True)
class ShownState:
    """The state of one job, for pages that show it; `now` is the database's time."""

    job: Job
    now: datetime

    @property
    def is_final(self) -> bool:
        """Whether the job no longer changes by itself, so that the page need not be fetched again."""
        return Status(self.job.status).is_finished

    @property
    def state(self) -> str:
        """The status; `retrying` for a scheduled job that has failed before."""
        return state_of(self.job)

    @property
    def state_label(self) -> str:
        return str(STATES[self.state])
