"""Sends the outcomes of carried jobs to the relay, over a connection of this process's own.

Invariant: an outcome stays here until the broker has confirmed it. Only then does its Celery task end, and only after
that is the job's message acknowledged. So the broker has the job's message or its outcome, at every instant. An outcome
that the broker never takes is replaced by a failure that says so.
"""

import threading
import time
from collections import deque
from typing import Any

from ..events import carried_logs
from ..relay import wire
from ..relay.carrier import CarrierUnreachable
from ..relay.rabbitmq import topology
from ..relay.rabbitmq.amqp_link import AmqpLink
from ..relay.rabbitmq.frames import Envelope
from ..relay.rabbitmq.message_limit import MessageLimit
from ..runtime.wakeup import Wakeup
from ..values.records import Attempt
from ..values.times import NEVER
from . import too_large

FIRST_DELAY, LONGEST_DELAY = 0.2, 15.0
"""Seconds until the broker is tried again, doubled after each try."""

CONFIRM_SECONDS = 60.0
"""A broker that has not confirmed an outcome for so long is connected to again."""

SMALL = 16_384
"""Bytes of a message that every broker takes."""

WAKE_SECONDS = 5.0
"""Seconds between two looks at the connection, while an outcome is not confirmed."""


class Outgoing:
    """An outcome on its way."""

    __slots__ = ("attempt", "body", "home", "id", "is_confirmed", "woken")

    def __init__(self, attempt: Attempt, home: str) -> None:
        self.attempt = attempt
        self.home = home
        self.id = wire.message_id(home, attempt.job.ref)
        self.body = wire.encode(wire.attempt_to_wire(attempt))
        self.is_confirmed = False
        self.woken = threading.Event()
        """Set when the outcome is confirmed, or when its thread is to use the connection."""

    def fit(self, limit: MessageLimit) -> None:
        """Replace the outcome, if its message is larger than the broker takes."""
        size = len(self.body)
        if size > SMALL and size > (most := limit.most(too_large.most_for(self.attempt.job.queue_name))):
            self.attempt = too_large.replaced(self.attempt, size, most)
            self.body = wire.encode(wire.attempt_to_wire(self.attempt))


class OutcomeSender:
    """One for each process; `send` may be called by several threads at once.

    One of these threads uses the connection, for all of them, until its own outcome is confirmed; then another one. A
    thread of the sender's own would cost two more changes of threads for each job.
    """

    def __init__(self, app: Any, *, who: str) -> None:
        self._link = AmqpLink(app.connection_for_write(), heartbeat=0)  # nobody would send one while no job runs
        self._limit = MessageLimit()
        self._who = who
        self._wakeup = Wakeup()
        self._lock = threading.Lock()  # guards `_new` and `_is_used`
        self._new: deque[Outgoing] = deque()
        self._is_used = False  # whether a thread uses the connection
        self._published: dict[int, Outgoing] = {}  # not confirmed, by the number of their messages, ascending
        self._count = 0  # messages published on this connection
        self._returned: set[str] = set()
        self._envelopes: dict[str, Envelope] = {}
        self._channel = 0
        self._is_open = False
        self._oldest_at = NEVER
        self._delay = FIRST_DELAY
        self._retry_at = 0.0
        self._is_trouble_logged = False

    def send(self, attempt: Attempt, home: str) -> None:
        """Send the outcome of this attempt, and return once the broker has confirmed it, however long that takes."""
        outgoing = Outgoing(attempt, home)
        with self._lock:
            self._new.append(outgoing)
            is_used, self._is_used = self._is_used, True
        if is_used:
            self._wakeup.call()
            outgoing.woken.wait()
        while not outgoing.is_confirmed:
            self._take_a_turn()
            if outgoing.is_confirmed:
                self._hand_over()

    # In the one thread that uses the connection

    def _hand_over(self) -> None:
        """Let the thread of another outcome use the connection."""
        with self._lock:
            following = next(iter(self._published.values()), None) or next(iter(self._new), None)
            self._is_used = following is not None
        if following is not None:
            following.woken.set()

    def _take_a_turn(self) -> None:
        try:
            self._turn()
        except Exception as error:  # a wrong URL, for example: the outcome waits until Celery's worker is restarted
            self._broke(error)

    def _turn(self) -> None:
        """Publish what is new, wait for an answer of the broker or another outcome, and take the answers."""
        if self._may_publish():
            if not self._is_open:
                self._connect()
            self._publish(time.monotonic())
        files = [self._link.fileno()] if self._is_open else []
        self._wakeup.wait(self._rest(), unless=self._may_publish, files=files)
        if self._is_open:
            self._link.receive()
            if self._oldest_at + CONFIRM_SECONDS < time.monotonic():
                raise CarrierUnreachable(f"The broker has not confirmed an outcome for {CONFIRM_SECONDS:g} s.")

    def _may_publish(self) -> bool:
        return bool(self._new) and time.monotonic() >= self._retry_at

    def _rest(self) -> float:
        """Seconds that the thread may sleep."""
        return min(max(self._retry_at - time.monotonic(), 0.0), WAKE_SECONDS) if self._new else WAKE_SECONDS

    def _connect(self) -> None:
        self._link.connect()
        with self._link.translated_errors():
            channel = self._link.channel()
            channel.events["basic_ack"].add(self._confirmed)
            channel.events["basic_nack"].add(self._refused)
            channel.events["basic_return"].add(self._came_back)
            channel.confirm_select()
            self._link.start()
        self._channel, self._count, self._is_open = channel.channel_id, 0, True
        self._envelopes, self._returned = {}, set()

    def _publish(self, now: float) -> None:
        """Send all that waits, as one batch."""
        frames = []
        while self._new:
            outgoing = self._new.popleft()
            self._count += 1
            self._published[self._count] = outgoing
            outgoing.fit(self._limit)
            frames.append(self._envelope(outgoing.home).frames(outgoing.id, outgoing.body))
        self._oldest_at = min(self._oldest_at, now)
        self._link.send(b"".join(frames))

    def _envelope(self, home: str) -> Envelope:
        if home not in self._envelopes:
            self._envelopes[home] = Envelope(
                self._channel, routing_key=topology.outcome_queue(home), headers={}, frame_max=self._link.frame_max
            )
        return self._envelopes[home]

    def _settled(self, number: int, multiple: bool) -> list[Outgoing]:
        numbers = [number]
        if multiple:
            numbers = [each for each in self._published if each <= number]
        settled = [self._published.pop(each) for each in numbers if each in self._published]
        self._oldest_at = time.monotonic() if self._published else NEVER
        return settled

    def _confirmed(self, number: int, multiple: bool) -> None:
        for outgoing in self._settled(number, multiple):
            if outgoing.id in self._returned:
                self._returned.remove(outgoing.id)
                self._again([outgoing], f"the queue {topology.outcome_queue(outgoing.home)!r} is gone")
            else:
                self._works()
                outgoing.is_confirmed = True
                outgoing.woken.set()

    def _refused(self, number: int, multiple: bool) -> None:
        self._again(self._settled(number, multiple), "the broker refuses it")

    def _came_back(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        self._returned.add(message.properties["correlation_id"])

    def _again(self, outgoing: list[Outgoing], reason: str) -> None:
        """Send these again after a delay."""
        self._new.extendleft(reversed(outgoing))
        self._wait(CarrierUnreachable(reason))

    def _broke(self, error: Exception) -> None:
        """Close the connection. What was not confirmed is sent again: the relay drops an outcome that comes twice."""
        self._limit.learn(error)
        self._link.close()
        self._is_open = False
        self._new.extendleft(reversed(self._published.values()))
        self._published.clear()
        self._oldest_at = NEVER
        self._wait(error)

    def _wait(self, error: Exception) -> None:
        self._retry_at = time.monotonic() + self._delay
        self._delay = min(self._delay * 2, LONGEST_DELAY)
        if self._new and not self._is_trouble_logged:
            self._is_trouble_logged = True
            carried_logs.outcomes_wait(self._who, error)

    def _works(self) -> None:
        self._delay = FIRST_DELAY
        if self._is_trouble_logged:
            self._is_trouble_logged = False
            carried_logs.outcomes_sent(self._who)
