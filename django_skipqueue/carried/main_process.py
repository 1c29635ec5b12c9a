"""In the main process of Celery's worker: sends the outcomes of jobs that have run in its pool.

One message to the broker is for the outcomes of all processes or threads, and they run their next jobs meanwhile.

Invariant: a job's message is acknowledged after the broker has confirmed the job's outcome.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from celery.bootsteps import RUN
from celery.worker import state
from celery.worker.request import Request
from kombu.asynchronous import get_event_loop

from ..relay import wire
from ..values.records import Attempt
from ..values.times import NEVER
from .outcome_sender import OutcomeSender
from .return_path import Gate

ENOUGH = 100
"""Outcomes that wait for no more, if the broker sends messages without a limit."""

COLD_SECONDS = 2.0
"""Seconds that a cold shutdown waits for the confirms of outcomes, at most."""

LOOK_SECONDS = 0.05
"""Seconds between two looks, during a shutdown, at whether all outcomes are confirmed."""


class Outcomes:
    """The outcomes of one worker of Celery, on their way from its pool to the broker."""

    def __init__(self) -> None:
        self._worker: Any = None
        self._gate = Gate()
        self._held: dict[str, list[wire.EncodedOutcome]] = defaultdict(list)
        self._sender: OutcomeSender | None = None
        self._lock = threading.RLock()  # reentrant: Celery ends a pool in its handler of signals

    def serve(self, worker: Any, gate: Gate) -> None:
        """Serve this worker of Celery, before it makes its pool. The gate is shut while it takes no outcomes."""
        self._worker, self._gate, self._sender = worker, gate, None

    def watch_loop(self) -> None:
        """Learn when Celery's event loop ends. Called once it is there."""
        if hub := get_event_loop():
            hub.on_close.add(self._loop_ends)

    def received(self) -> None:
        """A job has come: Celery's event loop runs."""
        if not self._gate.is_open:
            self._gate.is_open = True

    def hold(self, attempt: Attempt, home: str) -> bool:
        """Keep the outcome until the request of its message takes it. Called by the threads of a pool."""
        outcome = wire.encode_outcome(attempt, home)
        with self._lock:
            self._held[outcome.id].append(outcome)
        return True

    def take(self, id: str) -> wire.EncodedOutcome | None:
        """An outcome that is kept for this message; one for each time the message was delivered."""
        with self._lock:
            held = self._held.pop(id, [])
            outcome = held.pop() if held else None
            if held:
                self._held[id] = held
            return outcome

    def post(self, outcome: wire.EncodedOutcome, confirmed: Callable[[], None]) -> None:
        """Send this outcome, and call `confirmed` in the sender's thread once the broker has confirmed it."""
        with self._lock:
            if self._sender is None:
                self._sender = self._make_sender()
        self._sender.post(outcome, confirmed)

    def _make_sender(self) -> OutcomeSender:
        worker = self._worker
        prefetched = worker.concurrency * worker.prefetch_multiplier
        enough = max(prefetched // 2, 1) if prefetched else ENOUGH
        return OutcomeSender(worker.app, who=worker.hostname, enough=enough)

    def _loop_ends(self, _: Any) -> None:
        """Called after Celery has lost its connection, and during a shutdown before its last acknowledgements."""
        if self._worker.blueprint.state == RUN:
            self._gate.is_open = False
        else:
            self._wait()

    def _wait(self) -> None:
        """Wait until Celery has all acknowledgements, which it then sends. A cold shutdown does not wait for long."""
        cold_end = NEVER
        while self._sender and not self._sender.is_done and time.monotonic() < cold_end:
            time.sleep(LOOK_SECONDS)
            if state.should_terminate:
                cold_end = min(cold_end, time.monotonic() + COLD_SECONDS)


outcomes = Outcomes()


class CarriedRequest(Request):  # type: ignore[misc]
    """A task of Celery's main process, until its message is acknowledged."""

    _outcome: wire.EncodedOutcome | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        outcomes.received()
        super().__init__(*arguments, **options)

    def __init_subclass__(cls, **options: Any) -> None:
        """Celery makes a subclass for each worker, whose `on_success` calls `acknowledge`."""
        super().__init_subclass__(**options)
        end = cls.on_success

        def on_success(self: CarriedRequest, failed__retval__runtime: tuple[Any, Any, float], **options: Any) -> None:
            failed, returned, seconds = failed__retval__runtime
            if isinstance(returned, wire.EncodedOutcome):  # see `ReturnPath`
                self._outcome, returned = returned, None
            end(self, (failed, returned, seconds), **options)

        cls.on_success = on_success

    def acknowledge(self) -> None:
        """Acknowledge the message: at once, if the job has no outcome."""
        if not self._send_outcome():
            super().acknowledge()

    def reject(self, *arguments: Any, **options: Any) -> None:
        """Reject the message, unless the job has run: a receiver of Celery's signals may have failed after it."""
        if not self._send_outcome():
            super().reject(*arguments, **options)

    def _send_outcome(self) -> bool:
        """Send the outcome, and acknowledge the message after it. `False`: there is none.

        Celery's event loop sends the acknowledgement. A callback of that loop may not ask for it: the loop would sleep
        before it sends it.
        """
        outcome = self._outcome or outcomes.take(self.id)
        self._outcome = None
        if outcome is None:
            return False
        outcomes.post(outcome, super().acknowledge)
        return True
