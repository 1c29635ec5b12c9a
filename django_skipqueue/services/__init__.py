"""What a supervisor does at intervals. A service that needs only the `Store` is a class, and a line in `SERVICES`."""

from .admit import Admit
from .prune import Prune
from .service import Service

__all__ = ["SERVICES", "Service"]

SERVICES: tuple[type[Service], ...] = (Admit, Prune)
"""The services that need only the `Store`. `Supervisor` makes the others: heartbeat, listen, recover, prune workers."""
