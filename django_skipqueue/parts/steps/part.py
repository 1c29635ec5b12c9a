"""Steps, sleeps, signals and children of jobs, as the core sees them."""

from ...values.part import Part, console_of
from .attempt import calling_after
from .children import on_operate
from .models import SignalTimes
from .wake import SignalGate, WaitObserver, WakeSettled

PART = Part(
    name="steps",
    depends=("batches",),
    gate=SignalGate(),
    observers=((WaitObserver, WakeSettled),),
    on_operate=on_operate,
    clock=SignalTimes,
    after_step=calling_after,
    console=console_of(__package__),
)
