"""The services of a supervisor that need little of it. `Supervisor` makes the others."""

from collections.abc import Callable

from ..queue.store import Store
from ..values.part import installed_parts
from ..worker.loop import Service
from .admit import Admit
from .prune import Prune


def watches() -> tuple[Callable[[Store, Callable[[], bool]], Service], ...]:
    """Services of the parts: see `Part.watches`."""
    return tuple(watch for part in installed_parts() for watch in part.watches)


def services() -> tuple[Callable[[Store], Service], ...]:
    """Those of the core, and those of the parts."""
    return (Admit, *(service for part in installed_parts() for service in part.services), Prune)
