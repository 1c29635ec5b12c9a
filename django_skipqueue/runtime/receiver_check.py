"""Detects a signal receiver that hangs in the dispatcher's thread, and logs it."""

from collections.abc import Callable

from ..events import liveness_logs
from .dispatcher import EventDispatcher
from .service import NEVER, Service


class ReceiverCheck(Service):
    """Logs, once, that a receiver hangs. The receivers of later events wait behind it."""

    name = "receiver_check"
    loop_handles_errors = False

    def __init__(
        self, dispatcher: EventDispatcher, *, who: str, hint: str, then: Callable[[], object] = lambda: None
    ) -> None:
        """`who` names the process, and `hint` the consequence, in the log line. `then` is called after it."""
        self._dispatcher = dispatcher
        self._who = who
        self._hint = hint
        self._then = then
        self._is_logged = False

    @property
    def due_at(self) -> float:
        """The time at which the running receiver counts as hanging."""
        return NEVER if self._is_logged else self._dispatcher.hangs_at

    def run(self, now: float) -> None:
        """Log it."""
        self._is_logged = True
        liveness_logs.receiver_hangs(self._who, self._dispatcher.stack(), self._hint)
        self._then()
