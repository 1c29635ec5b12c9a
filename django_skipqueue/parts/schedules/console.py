"""Schedules, for operators: a subcommand, a check of the doctor, metrics."""

from django.utils.translation import gettext_lazy as _

from ...console.doctor.finding import Check
from ...console.metrics.catalogue import Scraped
from ...console.parts import PartConsole
from .cli import Schedules
from .doctor import late
from .metrics import schedules

CONSOLE = PartConsole(
    subcommands=(Schedules(),),
    checks=(Check("late-schedule", late, _("Every schedule has fired in time")),),
    metrics=(Scraped("schedules", schedules),),
)
