"""What parts share whose jobs have keys, such as limits and rates, as the core sees it."""

from ...values.part import Part, console_of

PART = Part(name="keyed", console=console_of(__package__))
