"""The part `alerts` for the core: a service that checks and announces, and receivers for the webhook."""

from ... import signals
from ...values.part import Part, console_of
from .watch import WatchAlerts
from .webhook import post

PART = Part(
    name="alerts",
    watches=(WatchAlerts,),
    receivers=((signals.alert_raised, post), (signals.alert_over, post)),
    console=console_of(__package__),
)
