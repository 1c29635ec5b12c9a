"""Runs a relay's control loop in a thread of the test's process, with a carrier in memory."""

import os
import threading
from typing import Any

from django.db import connections

from django_skipqueue.contrib.celery.relay import Relay, RelayOptions
from django_skipqueue.worker.protocol import STOP, encode_command

from ....app.waiting import DEADLINE
from .fake_carrier import FakeCarrier


class RelayThread:
    """Runs a `Relay` as its process does, without a process and signals."""

    def __init__(self, carrier: FakeCarrier, *, id: str = "r:0123456789ab", **options: Any) -> None:
        defaults: dict[str, Any] = {
            "name": "r",
            "database": "default",
            "carrier": "celery",
            "queue_names": ("carried",),
        }
        self.options = RelayOptions(**(defaults | options))
        self.code: int | None = None
        self.relay: Relay
        self._carrier, self._id = carrier, id
        self._read_end, self._lifeline = os.pipe()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(DEADLINE)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> int | None:
        """Stop the relay as its supervisor does, and return its exit code."""
        if self._thread.is_alive():
            os.write(self._lifeline, encode_command(STOP))
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        return self.code

    def end(self) -> None:
        """Stop the relay, and close its pipe and its sockets."""
        self.stop()
        os.close(self._lifeline)
        os.close(self._read_end)
        self.relay.wakeup.close()

    def _run(self) -> None:
        self.relay = Relay(
            self.options, id=self._id, name=self.options.name, lifeline=self._read_end, carrier=self._carrier
        )
        self.relay.wakeup.on_signals = lambda *_: None  # type: ignore[method-assign]  # only for main threads
        self._ready.set()
        try:
            self.code = self.relay.run()
        finally:
            connections.close_all()
