"""The result of a look at gates."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class GateResult:
    by_queue: Mapping[str, int]
    """The number of admitted jobs, by queue."""
    has_discarded: bool = False
    """Whether jobs were discarded instead, or their needs forgotten."""

    @property
    def goes_on(self) -> bool:
        return self.has_discarded or bool(self.by_queue)
