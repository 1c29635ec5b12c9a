"""Batches, for operators: a subcommand, metrics."""

from ...console.metrics.catalogue import Scraped
from ...console.parts import PartConsole
from .cli import Batches
from .metrics import batches

CONSOLE = PartConsole(subcommands=(Batches(),), metrics=(Scraped("batches", batches),))
