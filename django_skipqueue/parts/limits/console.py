"""Limits, for operators: a subcommand, checks of the doctor, metrics, why a job waits for a permit."""

from django.utils.translation import gettext_lazy as _

from ...console.doctor.finding import Check
from ...console.metrics.catalogue import Scraped
from ...console.parts import PartConsole
from .cli import Limits
from .doctor import free_permits, halted, held_permits
from .explain import why_it_is_blocked
from .metrics import blocked, keys

CONSOLE = PartConsole(
    subcommands=(Limits(),),
    checks=(
        Check("halted-sequence", halted, _("No sequence has halted")),
        Check("free-permit", free_permits, _("No permit is free while jobs wait for it")),
        Check("held-permit", held_permits, _("No permit is held by a job that no worker claims")),
    ),
    metrics=(Scraped("blocked", blocked), Scraped("limits", keys)),
    explain=why_it_is_blocked,
)
