"""Schedules, as the core sees them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...values.part import Part
from .checks import check_periodic
from .fire import FireSchedules

if TYPE_CHECKING:
    from ...console.parts import PartConsole


def console() -> "PartConsole":
    from .console import CONSOLE

    return CONSOLE


def planned(schedules: bool | Sequence[Any]) -> Sequence[Any]:
    from .planned import planned  # only tests use it

    return planned(schedules)


PART = Part(
    name="schedules",
    services=(FireSchedules,),
    checks=(check_periodic,),
    planned=planned,
    console=console,
)
