"""An observer of a worker process. It stores all jobs, attempts and events of which the worker notifies it."""

from collections.abc import Sequence

from django_skipqueue.events.events import AttemptsEnded, Event
from django_skipqueue.values.records import Attempt, ClaimedJob


class Remembering:
    def __init__(self) -> None:
        self.jobs: list[ClaimedJob] = []
        self.attempts: list[tuple[type[AttemptsEnded], Attempt]] = []
        self.events: list[Event] = []

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        self.jobs += jobs

    def ended(self, kind: type[AttemptsEnded], attempts: Sequence[Attempt]) -> None:
        self.attempts += [(kind, attempt) for attempt in attempts]

    def sent(self, event: Event) -> None:
        self.events.append(event)
