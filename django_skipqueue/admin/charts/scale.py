"""The vertical axis of a chart: from zero to a round number, with a few round marks. Pure."""

import math
from dataclasses import dataclass

MOST_STEPS = 4
"""The maximum of steps from zero to the top."""

ROUND_DURATIONS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400,
)  # fmt: skip
"""Steps in seconds that are round in the units of time; below one second and above one day, decimal ones are."""


@dataclass(frozen=True)
class Scale:
    """An axis from 0 to `steps` times `step`."""

    step: float
    steps: int

    @property
    def top(self) -> float:
        return self.step * self.steps

    @property
    def marks(self) -> list[float]:
        return [self.step * number for number in range(self.steps + 1)]

    def share(self, value: float) -> float:
        """The place of a value on the axis: 0 at the lower end, 1 at the upper."""
        return value / self.top


def of_numbers(highest: float) -> Scale:
    """The axis for numbers of things up to `highest`: whole steps of 1, 2 or 5 and zeros."""
    return _scale(highest, max(1.0, _decimal_step(highest / MOST_STEPS)))


def of_durations(highest: float) -> Scale:
    """The axis for durations in seconds up to `highest`; without any, up to 1 ms."""
    wanted = max(highest, 0.001) / MOST_STEPS
    if wanted <= 0.5 or wanted > ROUND_DURATIONS[-1]:
        days = 86_400 if wanted > ROUND_DURATIONS[-1] else 1
        return _scale(max(highest, 0.001), _decimal_step(wanted / days) * days)
    return _scale(highest, next(step for step in ROUND_DURATIONS if step >= wanted))


def _scale(highest: float, step: float) -> Scale:
    return Scale(step, max(1, math.ceil(round(highest / step, 6))))


def _decimal_step(wanted: float) -> float:
    """The least of 1, 2, 5, 10, 20, 50 … and of 0.5, 0.2, 0.1 … that is not below `wanted`."""
    if wanted <= 0:
        return 1.0
    power = math.floor(math.log10(wanted))
    for factor in (1, 2, 5):
        step = float(f"{factor}e{power}")
        if step >= wanted * (1 - 1e-9):
            return step
    return float(f"1e{power + 1}")
