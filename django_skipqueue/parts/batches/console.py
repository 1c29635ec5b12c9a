"""Batches, for operators: a subcommand, metrics, why a job waits for others."""

from ...console.metrics.catalogue import Scraped
from ...console.parts import PartConsole
from .cli import Batches
from .explain import why_it_waits_for_jobs
from .metrics import batches

CONSOLE = PartConsole(subcommands=(Batches(),), metrics=(Scraped("batches", batches),), explain=why_it_waits_for_jobs)
