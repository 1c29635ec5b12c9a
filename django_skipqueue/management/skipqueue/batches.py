"""Changes the chosen jobs in batches.

Invariant: each batch is one statement of the queue, committed by itself. Ctrl-C ends the command after a batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from ...models import Job
from ...store import Store
from ...store.statements import BATCH
from ..terminal.console import Console
from ..terminal.interruption import until_interrupted
from .choosing import Choice
from .verbs import Instruction, Verb


@dataclass
class Tally:
    changed: int = 0
    unchanged: int = 0
    is_interrupted: bool = False


def change(verb: Verb, choice: Choice, instruction: Instruction, *, console: Console, total: int) -> Tally:
    """Apply the verb to the jobs that it can change. Jobs that are enqueued meanwhile are left out."""
    store, tally = Store.default(), Tally()
    with until_interrupted() as is_interrupted:
        for ids in _batches(verb, choice):
            if is_interrupted():
                tally.is_interrupted = True
                break
            changed = len(verb.change(store, ids, instruction))
            tally.changed += changed
            tally.unchanged += len(ids) - changed
            console.progress(f"{tally.changed:,} of {total:,} jobs {verb.done} …")
    console.end_progress()
    return tally


def _batches(verb: Verb, choice: Choice) -> Iterator[list[int]]:
    """The ids, in the order of the lists. Those of a window are read before its first job is changed."""
    newest = Job.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    for part in choice.parts():
        jobs = part.jobs.filter(verb.fits, pk__lte=newest)
        ids = iter(list(jobs.values_list("pk", flat=True)))
        while batch := list(islice(ids, BATCH)):
            yield batch
