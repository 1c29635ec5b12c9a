"""One HTTP request and its response, on a socket that never blocks. Answers GET and HEAD, and closes.

Invariant: whatever a client sends or does not send, the exchange takes little memory, and is over at `end_at`.
"""

import selectors
import socket
from collections.abc import Callable
from typing import NamedTuple

LARGEST_REQUEST = 8_192
"""Bytes of a request's line and headers."""

EXCHANGE_TIME = 5.0
"""Seconds that a client has for everything: to send its request, to read the response, and to close."""


class Page(NamedTuple):
    status: str
    body: str
    kind: str = "text/plain; charset=utf-8"


Answer = Callable[[str], Page | None]
"""Returns the page at a path; `None`: there is none."""


class HttpExchange:
    """Created with a connected socket. `proceed` does what is possible without waiting."""

    def __init__(self, client: socket.socket, answer: Answer, now: float) -> None:
        client.setblocking(False)
        self.end_at = now + EXCHANGE_TIME
        """When to close it, in monotonic seconds."""
        self._socket = client
        self._answer = answer
        self._received = b""
        self._response = b""
        self._is_answered = False

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def waits_for(self) -> int:
        """The event of `selectors` after which to proceed."""
        return selectors.EVENT_WRITE if self._response else selectors.EVENT_READ

    def proceed(self) -> bool:
        """Read, or write. Returns whether the exchange is over."""
        try:
            return not self._write() if self._response else not self._read()
        except BlockingIOError:
            return False
        except OSError:  # the client is gone
            return True

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> bool:
        """Read what has come. After the response this is dropped: to close before it is read would reset the client."""
        received = self._socket.recv(LARGEST_REQUEST)
        if received and not self._is_answered:
            self._received += received
            self._response = respond(self._received, self._answer)
            return self._write() if self._response else True
        return bool(received)

    def _write(self) -> bool:
        self._response = self._response[self._socket.send(self._response) :]
        if not self._response:
            self._is_answered = True
            self._socket.shutdown(socket.SHUT_WR)
        return True


def respond(received: bytes, answer: Answer) -> bytes:
    """The response to a request; empty: the request has not arrived as a whole."""
    head, end, _ = received.replace(b"\r\n", b"\n").partition(b"\n\n")
    if len(received) > LARGEST_REQUEST:
        return _response(Page("431 Request Header Fields Too Large", "The request is too large.\n"))
    if not end:
        return b""
    parts = head.partition(b"\n")[0].decode("latin-1").split(" ")
    if len(parts) != 3 or not parts[1].startswith("/") or parts[2] not in ("HTTP/1.0", "HTTP/1.1"):
        return _response(Page("400 Bad Request", "This is not HTTP/1.1.\n"))
    method, target, _ = parts
    if method not in ("GET", "HEAD"):
        return _response(Page("405 Method Not Allowed", "Use GET or HEAD.\n"), "Allow: GET, HEAD\r\n")
    return _response(_page(target.partition("?")[0], answer), with_body=method == "GET")


def _page(path: str, answer: Answer) -> Page:
    try:
        found = answer(path)
    except Exception as error:  # nobody would see it, and the probe needs an answer
        return Page("500 Internal Server Error", f"{type(error).__name__}\n")
    return found or Page("404 Not Found", "There are /healthz, /readyz and /metrics.\n")


def _response(page: Page, headers: str = "", *, with_body: bool = True) -> bytes:
    body = page.body.encode()
    head = (
        f"HTTP/1.1 {page.status}\r\nContent-Type: {page.kind}\r\nContent-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\nConnection: close\r\n{headers}\r\n"
    )
    return head.encode() + (body if with_body else b"")
