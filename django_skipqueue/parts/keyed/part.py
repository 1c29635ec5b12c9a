"""The part `keyed` for the core: code that `limits` and `rates` share."""

from ...values.part import Part, console_of

PART = Part(name="keyed", console=console_of(__package__))
