"""The tabs over the list of jobs: all, and one for each state, with a count where an index has it."""

from dataclasses import dataclass
from typing import Any

from ...counts import Count


@dataclass(frozen=True)
class Tab:
    state: str
    label: Any
    address: str
    is_selected: bool
    count: Count | None
