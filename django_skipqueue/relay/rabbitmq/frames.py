"""The bytes of AMQP 0-9-1 that a relay sends and receives in great numbers.

py-amqp makes a message of several objects, writes it by a system call of its own, and looks at the socket before each.
Here the parts that all messages to a queue share are made once, and a batch is one string of bytes.
"""

import struct
from collections.abc import Iterator

from amqp import spec
from amqp.serialization import dumps

METHOD, HEADER, BODY = 1, 2, 3
"""Types of frames."""

HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"

OVERHEAD = 8
"""Bytes of a frame beside its payload."""

_PREFIX = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HHQ")
_BASIC_CLASS = 60
_END = b"\xce"
_PERSISTENT = b"\x02"

# The bits of the properties that are sent, in the order in which these follow.
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _DELIVERY_MODE = 1 << 15, 1 << 14, 1 << 13, 1 << 12
_CORRELATION_ID, _EXPIRATION = 1 << 10, 1 << 8

Frame = tuple[int, int, bytes]
"""Type, channel and payload."""


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return b"".join((_PREFIX.pack(kind, channel, len(payload)), payload, _END))


def method_frame(channel: int, method: tuple[int, int], types: str, values: tuple[object, ...]) -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", *method) + dumps(types, values))


def acknowledgement(channel: int, delivery_tag: int, multiple: bool) -> bytes:
    """The frame that acknowledges a delivery; `multiple`: and all before it."""
    return method_frame(channel, spec.Basic.Ack, "Lb", (delivery_tag, multiple))


class Envelope:
    """What the messages to one queue have in common: all but their ids and bodies."""

    def __init__(
        self,
        channel: int,
        *,
        routing_key: str,
        exchange: str = "",
        headers: dict[str, str],
        id_header: bool = False,
        expiration_ms: int | None = None,
        mandatory: bool = True,
        frame_max: int,
    ) -> None:
        """id_header: put the id of each message into a header `id` too, where Celery reads it."""
        self._channel = channel
        self._publish = method_frame(channel, spec.Basic.Publish, "Bssbb", (0, exchange, routing_key, mandatory, False))
        flags = _CONTENT_TYPE | _CONTENT_ENCODING | _HEADERS | _DELIVERY_MODE | _CORRELATION_ID
        flags |= _EXPIRATION if expiration_ms is not None else 0
        self._head = struct.pack(">H", flags) + _short(b"application/json") + _short(b"utf-8")
        self._headers = b"".join(_short(name.encode()) + _long(value.encode()) for name, value in headers.items())
        self._id_name = _short(b"id") if id_header else b""
        self._tail = b"" if expiration_ms is None else _short(str(expiration_ms).encode())
        self._largest = frame_max - OVERHEAD

    def frames(self, id: str, body: bytes) -> bytes:
        key = id.encode()
        headers = self._headers + self._id_name + _long(key) if self._id_name else self._headers
        size = len(body)
        content = b"".join(
            (
                _CONTENT.pack(_BASIC_CLASS, 0, size),
                self._head,
                len(headers).to_bytes(4, "big"),
                headers,
                _PERSISTENT,
                _short(key),
                self._tail,
            )
        )
        parts = [self._publish, _PREFIX.pack(HEADER, self._channel, len(content)), content, _END]
        for start in range(0, size, self._largest):
            part = body if size <= self._largest else body[start : start + self._largest]
            parts += (_PREFIX.pack(BODY, self._channel, len(part)), part, _END)
        return b"".join(parts)


class FrameReader:
    def __init__(self, frame_max: int) -> None:
        self._frame_max = frame_max
        self._rest = b""

    def read(self, received: bytes) -> Iterator[Frame]:
        """The frames that are complete with these bytes; the others wait for more. Iterate to the end each time."""
        data = self._rest + received if self._rest else received
        at, end = 0, len(data)
        while at + OVERHEAD <= end:
            kind, channel, size = _PREFIX.unpack_from(data, at)
            after = at + OVERHEAD + size
            if after > end and size <= self._frame_max:
                break
            if size > self._frame_max or data[after - 1] != _END[0]:
                raise ConnectionError("The broker has sent what is no frame of AMQP.")
            yield kind, channel, data[at + _PREFIX.size : after - 1]
            at = after
        self._rest = data[at:]


def _short(value: bytes) -> bytes:
    return bytes((len(value),)) + value


def _long(value: bytes) -> bytes:
    return b"S" + len(value).to_bytes(4, "big") + value
