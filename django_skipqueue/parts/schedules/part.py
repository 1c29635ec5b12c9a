"""The part `schedules` for the core: the service that fires schedules, and a system check."""

from ...values.part import Part, console_of
from .entry import check_periodic
from .fire import FireSchedules, planned

PART = Part(
    name="schedules",
    services=(FireSchedules,),
    checks=(check_periodic,),
    planned=planned,
    console=console_of(__package__),
)
