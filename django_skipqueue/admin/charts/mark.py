"""A labelled place on an axis. Pure."""

from typing import NamedTuple


class Mark(NamedTuple):
    """The place, from 0 at the lower or left end to 1, and its label."""

    share: float
    label: str

    @property
    def from_top(self) -> str:
        """The distance from the upper end, in hundredths of the axis."""
        return f"{100 * (1 - self.share):.2f}"

    @property
    def from_left(self) -> str:
        """The distance from the left end, in hundredths of the axis."""
        return f"{100 * self.share:.2f}"
