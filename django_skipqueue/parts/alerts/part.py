"""Alerts, as the core sees them."""

from typing import TYPE_CHECKING

from ... import signals
from ...values.part import Part
from .watch import WatchAlerts
from .webhook import post_over, post_raised

if TYPE_CHECKING:
    from ...console.parts import PartConsole


def console() -> "PartConsole":
    from .console import CONSOLE

    return CONSOLE


PART = Part(
    name="alerts",
    depends=("history", "limits", "schedules"),
    watches=(WatchAlerts,),
    receivers=((signals.alert_raised, post_raised), (signals.alert_over, post_over)),
    console=console,
)
