"""What a supervisor does at intervals. A new service is one class, and one line in `SERVICES`."""

from .admit import Admit
from .prune import Prune
from .service import Service

__all__ = ["SERVICES", "Service"]

SERVICES: tuple[type[Service], ...] = (Admit, Prune)
"""What every supervisor does for the whole queue, in this order; each is made of the `Store` alone."""
