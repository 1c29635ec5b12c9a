"""Alerts, as the core sees them."""

from ... import signals
from ...values.part import Part, console_of
from .watch import WatchAlerts
from .webhook import post_over, post_raised

PART = Part(
    name="alerts",
    depends=("history", "limits", "schedules"),
    watches=(WatchAlerts,),
    receivers=((signals.alert_raised, post_raised), (signals.alert_over, post_over)),
    console=console_of(__package__),
)
