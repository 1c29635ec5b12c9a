"""When a worker claims, how many jobs, and from where.

Pure: it is told the time, in monotonic seconds, and what its claims brought.
"""

from collections.abc import Callable, Mapping, Sequence

from ..records import ClaimedJob, Position
from .frontier import Frontier, rest_after
from .options import WorkerOptions
from .places import Places


class Claiming:
    """Used by the control loop's thread."""

    def __init__(self, options: WorkerOptions) -> None:
        self.queue_names = list(options.queue_names)
        """Where to claim from, in this order."""
        self.next_look = 0.0
        """When to claim although no outcome takes the worker to the database."""
        self.threads = Places(options.concurrency)
        self.coroutines = Places(options.concurrency)
        self._frontier = Frontier()
        self._listed = bool(options.queue_names)
        self._poll_interval = options.poll_interval
        self._next_search = 0.0

    def room(self, threads: int, coroutines: int, now: float) -> int:
        """How many more jobs to claim beside so many of each kind that are not finished."""
        room = self.threads.room(threads, now)
        return min(room, self.coroutines.room(coroutines, now)) if coroutines else room

    def finished(self, threads: int, coroutines: int, now: float) -> None:
        """Note that so many jobs of each kind were finished."""
        self.threads.look_ahead.finished(threads, now)
        self.coroutines.look_ahead.finished(coroutines, now)

    def choose_queues(self, search: Callable[[], list[str]], clock: Callable[[], float]) -> None:
        """Without a list from the command line: serve every queue that has jobs, each in its turn first."""
        if self._listed:
            return
        started = clock()
        if self._next_search <= started:
            self.queue_names = search()
            now = clock()
            self._next_search = now + max(self._poll_interval, rest_after(now - started))
        self.queue_names = self.queue_names[1:] + self.queue_names[:1]

    def after(self, now: float) -> Mapping[str, Position]:
        """The positions after which to look for jobs now."""
        return self._frontier.start(now)

    def claimed(
        self, jobs: Sequence[ClaimedJob], *, room: int, after: Mapping[str, Position], started: float, ended: float
    ) -> bool:
        """Note what a claim brought, and when to make the next; whether it found the queues empty."""
        from_front = not after
        self._frontier.claimed(jobs, after=after, took=ended - started, now=ended)
        if len(jobs) == room:
            self.next_look = ended
        elif from_front:
            self.next_look = ended + self._poll_interval
        else:
            self.next_look = min(ended + self._poll_interval, self._frontier.due_at)
        return from_front and not jobs

    def start_over(self) -> None:
        """Claim at once, from the front: nobody knows what came of the last claim."""
        self.next_look = self._frontier.due_at = 0.0

    def look_at(self, time: float) -> None:
        """Search and claim again at this time."""
        self.next_look = self._next_search = time

    def heard(self, notified: set[str]) -> None:
        """Look at once if queues of ours got jobs."""
        if not self._listed:
            self.queue_names += sorted(notified.difference(self.queue_names))
        if notified.intersection(self.queue_names):
            self.next_look = 0.0
