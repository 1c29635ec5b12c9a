"""Sends the outcomes of a process, in a thread of its own."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from ..events.logs import logger
from ..relay import wire
from ..values.records import Attempt
from .outcome_link import OutcomeLink, Outgoing


class OutcomeSender:
    """May be used by several threads at once."""

    def __init__(self, app: Any, *, who: str, enough: int = 1) -> None:
        """enough: see `OutcomeLink`."""
        self._link = OutcomeLink(app, who=who, enough=enough)
        self._lock = threading.RLock()  # reentrant: Celery ends a pool in its handler of signals
        self._open = 0  # outcomes whose `confirmed` has not returned
        threading.Thread(target=self._serve, name="skipqueue-outcomes", daemon=True).start()

    def post(self, outcome: wire.EncodedOutcome, confirmed: Callable[[], None]) -> None:
        """Send this outcome, and call `confirmed` in the thread after the broker has confirmed it."""
        with self._lock:
            self._open += 1
            self._link.put(Outgoing(outcome, partial(self._confirmed, confirmed)))

    def send(self, attempt: Attempt, home: str) -> None:
        """Send the outcome of this attempt, and return once the broker has confirmed it, however long that takes."""
        self.send_encoded(wire.encode_outcome(attempt, home))

    def send_encoded(self, outcome: wire.EncodedOutcome) -> None:
        """Send this, and return once the broker has confirmed it."""
        confirmed = threading.Event()
        self.post(outcome, confirmed.set)
        confirmed.wait()

    @property
    def is_done(self) -> bool:
        return not self._open

    def _serve(self) -> None:
        while True:
            self._link.turn()

    def _confirmed(self, confirmed: Callable[[], None]) -> None:
        try:
            confirmed()
        except Exception:
            logger.exception("an acknowledgement failed hint='the broker delivers the job again'")
        with self._lock:
            self._open -= 1
