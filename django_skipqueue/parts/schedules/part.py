"""Schedules, as the core sees them."""

from collections.abc import Sequence
from typing import Any

from ...values.part import Part, console_of
from .checks import check_periodic
from .fire import FireSchedules


def planned(schedules: bool | Sequence[Any]) -> Sequence[Any]:
    from .planned import planned  # only tests use it

    return planned(schedules)


PART = Part(
    name="schedules",
    services=(FireSchedules,),
    checks=(check_periodic,),
    planned=planned,
    console=console_of(__package__),
)
