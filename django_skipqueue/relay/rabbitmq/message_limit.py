"""How large a message RabbitMQ takes.

RabbitMQ does not announce its `max_message_size`: it closes the channel on which a larger message comes. So the setting
`MAX_MESSAGE_SIZE` says it, and what RabbitMQ says when it refuses a message counts if it is less.

Invariant: a message that RabbitMQ has refused for its size is not sent a second time.
"""

import re

LARGEST = 512 * 1024 * 1024
"""Bytes. RabbitMQ allows no larger `max_message_size`."""

_REFUSAL = re.compile(r"message size \d+ is larger than (?:configured )?max size (\d+)")


class MessageLimit:
    def __init__(self) -> None:
        self._said = LARGEST

    def most(self, setting: int) -> int:
        """How many bytes the body of a message may have, by the setting and by what the broker has said."""
        return min(setting, self._said)

    def learn(self, error: BaseException) -> None:
        if found := _REFUSAL.search(str(error)):
            self._said = min(self._said, int(found[1]))
