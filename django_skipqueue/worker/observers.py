"""What parts observe of one process: the jobs that it claims, the attempts that end, and the events that it sends."""

from collections.abc import Sequence
from typing import Protocol

from ..events.events import AttemptsEnded, Event
from ..events.sinks import Send
from ..queue.store import Store
from ..values.part import installed_parts
from ..values.records import Attempt, ClaimedJob
from .loop import Periodic


class Observer(Protocol):
    """Used by the thread of a control loop."""

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """Observe a claim that returned these jobs, in claim order."""

    def ended(self, kind: type[AttemptsEnded], attempts: Sequence[Attempt]) -> None:
        """Observe attempts, after the database has accepted or rejected their outcomes."""

    def sent(self, event: Event) -> None:
        """Observe an event of a store, before it is sent."""


class Observers:
    """The observers of all parts. It is an `Observer` itself."""

    def __init__(self) -> None:
        kinds = [kind for part in installed_parts() for kind in part.observers]
        self.made: list[Observer] = [observer() for observer, _ in kinds]
        self._services = [service for _, service in kinds]

    def services(self, store: Store) -> list[Periodic]:
        """The services that write down what was observed: to be run at intervals, and at the end of the process."""
        return [service(store, observer) for service, observer in zip(self._services, self.made, strict=True)]

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """See `Observer`."""
        for observer in self.made:
            observer.claimed(jobs)

    def ended(self, kind: type[AttemptsEnded], attempts: Sequence[Attempt]) -> None:
        """See `Observer`."""
        for observer in self.made:
            observer.ended(kind, attempts)

    def sent(self, event: Event) -> None:
        """See `Observer`."""
        for observer in self.made:
            observer.sent(event)

    def observing(self, send: Send) -> Send:
        """Return a function that observes an event, and sends it."""

        def observe_and_send(event: Event) -> None:
            self.sent(event)
            send(event)

        return observe_and_send
