"""Carriers, for operators: checks of the doctor, metrics."""

from django.utils.translation import gettext_lazy as _

from ...console.doctor.finding import Check
from ...console.metrics.catalogue import Scraped
from ...console.parts import PartConsole
from .doctor import lost_jobs, unreachable, without_relay
from .metrics import carriers

CONSOLE = PartConsole(
    checks=(
        Check("carrier-without-relay", without_relay, _("Every carrier with jobs has a relay")),
        Check("carrier-unreachable", unreachable, _("The broker of every carrier is reached")),
        Check("carrier-lost-jobs", lost_jobs, _("No carrier holds jobs for too long")),
    ),
    metrics=(Scraped("carriers", carriers),),
)
