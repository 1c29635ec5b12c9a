"""How far the job of a bulk action is. It stands in the metadata of that job, and is written with each batch.

It is what the job goes on from after a crash. People see it as the progress that every task can note.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from ....models import Job
from ...durations import moment_of
from ...search import Window
from ..verbs.selection import newest_id
from ..verbs.verb import Changed

KEY = "progress"
"""In the metadata."""


@dataclass(frozen=True)
class Progress:
    newest: int
    """The highest id at the start: jobs that are added later are left out."""
    edges: tuple[Any, Any] = (None, None)
    """The start and the end of the window of the list that is being changed."""
    after: int = 0
    """The last id that is done in this window."""
    counted: int | None = None
    """The jobs that matched at the start, in all windows; `None`: nobody has searched them all."""
    changed: int = 0
    skipped: int = 0

    @classmethod
    def of(cls, job: Job) -> "Progress | None":
        """Read it from the job; `None` if the job has not begun, or somebody has written something else there."""
        written = job.metadata.get(KEY) if isinstance(job.metadata, dict) else None
        try:
            start, end = map(_from_json, written["edges"])  # type: ignore[index]
            read = cls(**{**written, "edges": (start, end)})  # type: ignore[dict-item]
        except (TypeError, ValueError, KeyError):
            return None
        numbers = (read.newest, read.after, read.counted or 0, read.changed, read.skipped)
        return read if all(isinstance(number, int) for number in numbers) else None

    @classmethod
    def at_the_start(cls, window: Window) -> "Progress":
        return cls(newest_id(), (window.start, window.end))

    def within(self, window: Window) -> "Progress":
        """This progress in this window: of every window but the last one, nothing is done."""
        edges = (window.start, window.end)
        return self if edges == self.edges else replace(self, edges=edges, after=0)

    @property
    def done(self) -> int:
        return self.changed + self.skipped

    def share_of(self, number: int) -> float:
        """The part of `number` jobs that is done, from 0 to 1; more jobs may be found than were counted."""
        return self.done / max(number, self.done, 1)

    def text(self, number: int) -> str:
        return f"{self.done:,} of {max(number, self.done):,}"

    def plus(self, ids: Collection[int], changed: Changed) -> "Progress":
        return replace(
            self,
            after=max(ids),
            changed=self.changed + len(changed),
            skipped=self.skipped + len(ids) - len(changed),
        )

    def save(self, job_id: int, lease: int) -> bool:
        """Write it into the job, unless another process has taken the job over. Returns whether it was written."""
        written = {KEY: {**asdict(self), "edges": [_to_json(edge) for edge in self.edges]}}
        return bool(Job.objects.running().filter(pk=job_id, lease=lease).update(metadata=written))


def _to_json(edge: tuple[Any, ...] | None) -> list[Any] | None:
    return None if edge is None else [key.isoformat() if isinstance(key, datetime) else key for key in edge]


def _from_json(edge: list[Any] | None) -> tuple[Any, ...] | None:
    return None if edge is None else tuple(moment_of(key) or key for key in edge)
