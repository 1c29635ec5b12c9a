"""Finds a receiver of the project's that hangs in the dispatcher's thread, and says so."""

from collections.abc import Callable

from ..events import liveness_logs
from .dispatcher import EventDispatcher
from .service import NEVER, Service


class ReceiverCheck(Service):
    """Logs once that a receiver hangs; receivers of later events wait behind it."""

    name = "receiver_check"
    loop_handles_errors = False

    def __init__(
        self, dispatcher: EventDispatcher, *, who: str, hint: str, then: Callable[[], object] = lambda: None
    ) -> None:
        """`who` and `hint` are for the log line: which process it is, and what follows; `then` is called after it."""
        self._dispatcher = dispatcher
        self._who = who
        self._hint = hint
        self._then = then
        self._is_logged = False

    @property
    def due_at(self) -> float:
        """When the receiver that runs now has run for too long."""
        return NEVER if self._is_logged else self._dispatcher.hangs_at

    def run(self, now: float) -> None:
        """Log it."""
        self._is_logged = True
        liveness_logs.receiver_hangs(self._who, self._dispatcher.stack(), self._hint)
        self._then()
