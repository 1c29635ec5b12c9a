"""Rates, as the core sees them."""

from ...values.part import Part
from .services import PruneRates

PART = Part(name="rates", services=(PruneRates,))
