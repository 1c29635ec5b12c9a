"""Detects a signal receiver that hangs in the dispatcher's thread, and logs it."""

from collections.abc import Callable

from ..events import liveness_logs
from ..values.times import NEVER
from .dispatcher import EventDispatcher
from .service import Service


class ReceiverCheck(Service):
    """Logs each receiver that hangs, once. The receivers of later events wait behind it."""

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
        self._logged = NEVER  # `hangs_at` of the receiver that was logged last

    @property
    def due_at(self) -> float:
        hangs_at = self._dispatcher.hangs_at
        return NEVER if hangs_at == self._logged else hangs_at

    def run(self, now: float) -> None:
        hangs_at = self._dispatcher.hangs_at
        if hangs_at <= now:
            self._logged = hangs_at
            liveness_logs.receiver_hangs(self._who, self._dispatcher.stack(), self._hint)
            self._then()
