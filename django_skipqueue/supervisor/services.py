"""The services of a supervisor that need only the `Store`. `Supervisor` makes the others."""

from collections.abc import Callable

from ..queue.store import Store
from ..values.part import installed_parts
from ..worker.loop import Service
from .admit import Admit
from .prune import Prune


def services() -> tuple[Callable[[Store], Service], ...]:
    """Those of the core, and those of the parts."""
    return (Admit, *(service for part in installed_parts() for service in part.services), Prune)
