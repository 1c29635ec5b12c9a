"""Stops the first relay process of a test at an exact step, until the test kills it."""

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
"""By the name of a step: the class and the method at which a relay halts, and whether it halts after the method."""


def source_of_halting_module(step: str, marker: Path) -> str:
    """Return the source of a `jobs` module that stops the first process at the step."""
    return f"from tests.contrib.celery.relay.halting import halt\nhalt({step!r}, {str(marker)!r})\n"


def halt(step: str, marker: str) -> None:
    """Have this process, or a child of it, stop at the step, unless another process has."""
    owner, name, is_after = STEPS[step]
    original: Callable[..., Any] = getattr(owner, name)

    def halting(self: Any, *arguments: Any) -> Any:
        if is_after:
            original(self, *arguments)
        if is_first(marker):
            while True:
                time.sleep(60)
        return None if is_after else original(self, *arguments)

    setattr(owner, name, halting)


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
    """Return the id of the process that has stopped at the step, once there is one."""
    return int(wait_until(lambda: marker.exists() and marker.read_text(), "a relay stops at its step"))
