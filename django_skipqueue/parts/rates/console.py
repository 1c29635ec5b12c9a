"""Rates, for operators: metrics, why a job waits for a token."""

from ...console.metrics.catalogue import Scraped
from ...console.parts import PartConsole
from .explain import why_it_waits_for_its_rate
from .metrics import rates

CONSOLE = PartConsole(metrics=(Scraped("rates", rates),), explain=why_it_waits_for_its_rate)
