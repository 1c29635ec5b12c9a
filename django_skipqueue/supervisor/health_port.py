"""Answers probes over HTTP, in a thread of the supervisor: the port answers also while the control loop hangs.

Invariant: the thread ends before a fork. The port stays open meanwhile, so that no probe is refused. No client, slow or
hostile, delays the others or the control loop for long.
"""

import contextlib
import selectors
import socket
import threading
import time

from .http_exchange import Answer, HttpExchange

MOST_EXCHANGES = 50
"""Clients at a time. A further one takes the place of the oldest."""

ACCEPT_DELAY = 0.1
"""Seconds until the next try if the system has no file descriptor left."""


def open_port(host: str, port: int) -> socket.socket:
    """Listen on a port. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=MOST_EXCHANGES)
    listener.setblocking(False)
    return listener


class HealthPort:
    """`start`, `stop` and `close` are called by the supervisor's main thread."""

    def __init__(self, listener: socket.socket, answer: Answer) -> None:
        self._listener = listener
        self._answer = answer
        self._exchanges: list[HttpExchange] = []  # the oldest first
        self._stopped, self._stop = socket.socketpair()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, which goes on with the exchanges under way."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="skipqueue-health", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread. Clients wait until the next `start`."""
        if self._thread is not None:
            self._stop.send(b"\0")
            self._thread.join()  # it never blocks
            self._thread = None

    def close(self) -> None:
        """Close the port, at the end or in a forked child. The thread does not run."""
        for exchange in self._exchanges:
            exchange.close()
        for opened in (self._listener, self._stopped, self._stop):
            opened.close()

    # In the thread

    def _run(self) -> None:
        while True:
            ready = self._wait()
            if self._stopped in ready:
                self._stopped.recv(1)
                return
            for exchange in [each for each in self._exchanges if each in ready and each.proceed()]:
                self._end(exchange)
            if self._listener in ready:
                self._accept()
            now = time.monotonic()
            for exchange in [each for each in self._exchanges if each.end_at <= now]:
                self._end(exchange)

    def _wait(self) -> list[object]:
        first_end = min((exchange.end_at for exchange in self._exchanges), default=None)
        timeout = None if first_end is None else max(first_end - time.monotonic(), 0)
        with selectors.PollSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            for exchange in self._exchanges:
                selector.register(exchange, exchange.waits_for)
            return [key.fileobj for key, _ in selector.select(timeout)]

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except BlockingIOError:  # the client is gone
            return
        except OSError:
            time.sleep(ACCEPT_DELAY)
            return
        if len(self._exchanges) == MOST_EXCHANGES:
            self._end(self._exchanges[0])
        self._exchanges.append(HttpExchange(client, self._answer, time.monotonic()))

    def _end(self, exchange: HttpExchange) -> None:
        self._exchanges.remove(exchange)
        with contextlib.suppress(OSError):
            exchange.close()
