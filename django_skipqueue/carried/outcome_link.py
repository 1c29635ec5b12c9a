"""A connection to the broker for the outcomes of carried jobs.

Outcomes that come in quick succession share a message: most of a short outcome's cost is that of its message, which
RabbitMQ writes to the disk.

Invariant: an outcome stays here until the broker has confirmed it. One that the broker never takes is replaced by a
failure that says so.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..events import carried_logs
from ..relay import wire
from ..relay.carrier import CarrierUnreachable
from ..relay.rabbitmq import topology
from ..relay.rabbitmq.amqp_link import AmqpLink
from ..relay.rabbitmq.frames import Envelope
from ..relay.rabbitmq.message_limit import MessageLimit
from ..runtime.wakeup import Wakeup
from ..values.times import NEVER
from . import too_large

FIRST_DELAY, LONGEST_DELAY = 0.2, 15.0
"""Seconds until the broker is tried again, doubled after each try."""

CONFIRM_SECONDS = 60.0
"""A broker that has not confirmed an outcome for so long is connected to again."""

SMALL = 16_384
"""Bytes of a message that every broker takes. Outcomes share a message up to this size."""

GATHER_SECONDS = 0.005
"""Outcomes wait for more until so many seconds after the last message."""

WAKE_SECONDS = 5.0
"""Seconds between two looks at the connection."""


class Outgoing:
    """An outcome on its way. `confirmed` is called once the broker has confirmed it."""

    __slots__ = ("confirmed", "outcome")

    def __init__(self, outcome: wire.EncodedOutcome, confirmed: Callable[[], None]) -> None:
        self.outcome = outcome
        self.confirmed = confirmed

    def fit(self, limit: MessageLimit) -> None:
        """Replace the outcome, if its message is larger than the broker takes."""
        if self.outcome.size > SMALL:
            self.outcome = too_large.fitting(self.outcome, limit)


class OutcomeLink:
    """`put` may be called by one thread at a time. All the rest is for the thread that takes the turns."""

    def __init__(self, app: Any, *, who: str, enough: int) -> None:
        """enough: how many outcomes are sent at once. Less than the prefetch, beyond which the broker sends no job."""
        self._link = AmqpLink(app.connection_for_write())
        self._limit = MessageLimit()
        self._who = who
        self._enough = enough
        self._wakeup = Wakeup()
        self._new: deque[Outgoing] = deque()
        self._published: dict[int, list[Outgoing]] = {}  # not confirmed, by the number of their message, ascending
        self._sent_at = -NEVER  # when the last message was; the clock may have begun a moment ago
        self._count = 0  # messages published on this connection
        self._returned: set[str] = set()
        self._envelopes: dict[str, Envelope] = {}
        self._channel = 0
        self._is_open = False
        self._oldest_at = NEVER
        self._delay = FIRST_DELAY
        self._retry_at = 0.0
        self._is_trouble_logged = False

    def put(self, outgoing: Outgoing) -> None:
        self._new.append(outgoing)
        if len(self._new) == 1 or len(self._new) >= self._enough:
            self._wakeup.call()

    def turn(self) -> None:
        """Publish what is new, wait for an answer of the broker or another outcome, and take the answers."""
        try:
            self._turn()
        except Exception as error:  # a wrong URL, for example: the outcome waits until Celery's worker is restarted
            self._broke(error)

    def close(self) -> None:
        self._link.close()

    def _turn(self) -> None:
        if time.monotonic() >= self._publish_at:
            if not self._is_open:
                self._connect()
            self._publish(time.monotonic())
        files = [self._link.fileno()] if self._is_open else []
        until = self._publish_at
        rest = min(max(until - time.monotonic(), 0.0), WAKE_SECONDS)
        self._wakeup.wait(rest, unless=lambda: self._publish_at < until, files=files)
        if self._is_open:
            self._link.receive()
            if self._oldest_at + CONFIRM_SECONDS < time.monotonic():
                raise CarrierUnreachable(f"The broker has not confirmed an outcome for {CONFIRM_SECONDS:g} s.")

    @property
    def _publish_at(self) -> float:
        if not self._new:
            return NEVER
        return max(self._retry_at, 0.0 if len(self._new) >= self._enough else self._sent_at + GATHER_SECONDS)

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
        self._sent_at, self._oldest_at = now, min(self._oldest_at, now)
        frames = []
        for group in self._groups():
            home, id, _ = group[0].outcome
            frames.append(self._envelope(home).frames(id, wire.join_outcomes([each.outcome for each in group])))
        self._link.send(b"".join(frames))

    def _groups(self) -> list[list[Outgoing]]:
        groups: list[list[Outgoing]] = []
        last: dict[str, tuple[list[Outgoing], int]] = {}  # of each home, with its bytes
        while self._new:
            outgoing = self._new[0]
            outgoing.fit(self._limit)
            outcome = outgoing.outcome
            group, filled = last.get(outcome.home, ([], SMALL))
            if filled + outcome.size > SMALL:
                group, filled = [], 0
                self._count += 1
                self._published[self._count] = group
                groups.append(group)
            group.append(self._new.popleft())
            last[outcome.home] = group, filled + outcome.size
        return groups

    def _envelope(self, home: str) -> Envelope:
        if home not in self._envelopes:
            self._envelopes[home] = Envelope(
                self._channel, routing_key=topology.outcome_queue(home), headers={}, frame_max=self._link.frame_max
            )
        return self._envelopes[home]

    def _settled(self, number: int, multiple: bool) -> list[list[Outgoing]]:
        numbers = [number]
        if multiple:
            numbers = [each for each in self._published if each <= number]
        settled = [self._published.pop(each) for each in numbers if each in self._published]
        self._oldest_at = time.monotonic() if self._published else NEVER
        return settled

    def _confirmed(self, number: int, multiple: bool) -> None:
        for group in self._settled(number, multiple):
            home, id, _ = group[0].outcome
            if id in self._returned:
                self._returned.remove(id)
                self._again(group, f"the queue {topology.outcome_queue(home)!r} is gone")
            else:
                self._works()
                for outgoing in group:
                    outgoing.confirmed()

    def _refused(self, number: int, multiple: bool) -> None:
        for group in self._settled(number, multiple):
            self._again(group, "the broker refuses it")

    def _came_back(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        self._returned.add(message.properties["correlation_id"])

    def _again(self, group: list[Outgoing], reason: str) -> None:
        self._new.extendleft(reversed(group))
        self._wait(CarrierUnreachable(reason))

    def _broke(self, error: Exception) -> None:
        """Close the connection. What was not confirmed is sent again: the relay drops an outcome that comes twice."""
        self._limit.learn(error)
        self._link.close()
        self._is_open = False
        for group in reversed(self._published.values()):
            self._new.extendleft(reversed(group))
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
