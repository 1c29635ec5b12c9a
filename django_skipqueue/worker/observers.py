"""What parts observe of one process: what it claims and settles, the attempts that end, and the events it sends."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ..events.events import AttemptsEnded, Event
from ..events.sinks import Send
from ..queue.store import Store
from ..values.part import installed_parts
from ..values.records import Attempt, ClaimedJob, LeaseRef
from .loop import Periodic, Service


class Observer(Protocol):
    """Used by the thread of a control loop."""

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """Observe a claim that returned these jobs, in claim order."""

    def ended(self, kind: type[AttemptsEnded], attempts: Sequence[Attempt]) -> None:
        """Observe attempts, after the database has accepted or rejected their outcomes."""

    def sent(self, event: Event) -> None:
        """Observe an event of a store, before it is sent."""


class SettleService(Service):
    """A service that does what follows from the end of jobs. Used by the thread of a control loop."""

    @abstractmethod
    def settled(self, settled: Mapping[LeaseRef, int | None]) -> None:
        """Note that these jobs are settled, each with its batch."""


def settle_services(store: Store, *, is_idle: Callable[[], bool] = lambda: False) -> tuple[SettleService, ...]:
    """The services of all parts. `is_idle`: whether the process has no job that could be delayed."""
    return tuple(service(store, is_idle) for part in installed_parts() for service in part.settle_services)


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
