"""Halts the first relay process of a test at an exact step. The process then waits until the test kills it."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django_skipqueue.contrib.celery.celery_carrier import CeleryCarrier
from django_skipqueue.contrib.celery.rows import HandOver

from ....app.waiting import wait_until

STEPS: dict[str, tuple[type, str, bool]] = {
    "claimed": (CeleryCarrier, "publish", False),
    "published": (CeleryCarrier, "publish", True),
    "confirmed": (HandOver, "run", False),
    "settled": (CeleryCarrier, "acknowledge", False),
}
"""For each step: the class and the method at which a relay halts, and whether it halts after or before the method."""


def source_of_halting_module(step: str, marker: Path) -> str:
    """Return the source of a `jobs` module that halts the first process at the step."""
    return f"from tests.contrib.celery.relay.halting import halt\nhalt({step!r}, {str(marker)!r})\n"


def halt(step: str, marker: str) -> None:
    """Patch the step's method, so that the first process that reaches the step halts. Its children are patched, too."""
    owner, name, is_after = STEPS[step]
    original: Callable[..., Any] = getattr(owner, name)

    def halt_if_first(self: Any, *arguments: Any) -> Any:
        if is_after:
            original(self, *arguments)
        if is_first(marker):
            while True:
                time.sleep(60)
        return None if is_after else original(self, *arguments)

    setattr(owner, name, halt_if_first)


def is_first(marker: str) -> bool:
    """Whether this process is the first to write its id into the file."""
    own_file = f"{marker}.{os.getpid()}"
    Path(own_file).write_text(str(os.getpid()))
    try:
        os.link(own_file, marker)
    except FileExistsError:
        return False
    return True


def pid_of_halted(marker: Path) -> int:
    """Wait until a process has halted at the step, and return its process id."""
    return int(wait_until(lambda: marker.exists() and marker.read_text(), "a relay stops at its step"))
