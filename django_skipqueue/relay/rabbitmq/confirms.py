"""Publishes messages, and tells which of them the broker has confirmed.

Invariant: each published message is settled once. The broker returns a message that it cannot put anywhere, and then
confirms it all the same: such a message is refused.
"""

import time
from itertools import takewhile
from typing import Any, Generic, TypeVar

import amqp

from ...values.times import NEVER

Key = TypeVar("Key")


class Confirms(Generic[Key]):
    """A channel in confirm mode, on which the broker numbers the messages from 1 on. Its keys name the messages."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._open: dict[int, tuple[Key, float]] = {}  # by number, ascending: the key, and when it was published
        self._published = 0
        self._excused_at = -NEVER
        self._returned: set[str] = set()
        self.confirmed: list[Key] = []
        """The messages that the broker has, since somebody emptied this list."""
        self.refused: list[Key] = []
        """The messages that the broker has not taken: their queue is full, or gone."""
        channel.events["basic_ack"].add(self._confirm)
        channel.events["basic_nack"].add(self._refuse)
        channel.events["basic_return"].add(self._return)
        channel.confirm_select()

    def publish(self, key: Key, body: bytes, *, queue: str, **properties: Any) -> None:
        """Publish a persistent message of JSON to this queue."""
        self._published += 1
        self._open[self._published] = key, time.monotonic()
        message = amqp.Message(
            body,
            content_type="application/json",
            content_encoding="utf-8",
            delivery_mode=2,
            message_id=str(self._published),
            **properties,
        )
        self._channel.basic_publish(message, routing_key=queue, mandatory=True)

    @property
    def unsettled(self) -> list[Key]:
        """The published messages that the broker has neither confirmed nor refused."""
        return [key for key, _ in self._open.values()]

    @property
    def oldest(self) -> float:
        """When the oldest of those that are not settled was published, in monotonic seconds."""
        _, published_at = next(iter(self._open.values()), (None, NEVER))
        return max(published_at, self._excused_at)

    def excuse(self) -> None:
        """Count all as published now: the broker is blocked, and says so."""
        self._excused_at = time.monotonic()

    def _confirm(self, number: int, multiple: bool) -> None:
        for each in self._numbers(number, multiple):
            key, _ = self._open.pop(each)
            if self._returned and str(each) in self._returned:
                self._returned.remove(str(each))
                self.refused.append(key)
            else:
                self.confirmed.append(key)

    def _refuse(self, number: int, multiple: bool) -> None:
        self.refused += [self._open.pop(each)[0] for each in self._numbers(number, multiple)]

    def _return(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        self._returned.add(message.properties["message_id"])

    def _numbers(self, number: int, multiple: bool) -> list[int]:
        """The open message of this number; `multiple`: and all before it."""
        if multiple:
            return list(takewhile(number.__ge__, self._open))
        return [number] if number in self._open else []
