"""Batches, for operators: a subcommand, a check of the doctor, metrics, and which jobs a blocked job waits for."""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...console.cli.subcommand import Exit, Subcommand
from ...console.cli.tables import GREEN, RED, YELLOW, Coloured
from ...console.cli.terminal import Console
from ...console.doctor.finding import Check, Finding, Severity
from ...console.durations import distance
from ...console.metrics import catalogue
from ...console.metrics.catalogue import Scraped
from ...console.parts import PartConsole, PartFact, PartSection
from ...events.log_format import job_name, printable
from ...models import Dependency, Job, JobBatch
from ...queue.store import Store
from ...values.exposition import Family
from . import states as batches

# batches → the number of open batches, of at most 10,000 of them, and the seconds since the first was made. Index: open
# of batches.
OPEN_BATCHES = """
SELECT
    count(*),
    coalesce(
        date_part(
            'epoch',
            statement_timestamp()
            - (SELECT created_at FROM skipqueue_batch WHERE finished_at IS NULL ORDER BY id LIMIT 1)
        ),
        0
    )
FROM (SELECT FROM skipqueue_batch WHERE finished_at IS NULL LIMIT 10000) AS open
LIMIT 1
"""


def open_batches(store: Store) -> Iterator[Family]:
    [(number, seconds)] = store.rows(OPEN_BATCHES)
    yield Family(catalogue.OPEN_BATCHES, {(): number})
    yield Family(catalogue.OLDEST_BATCH, {(): max(seconds, 0.0)})


# stuck-dependant → the jobs that wait for one that was deleted, or pruned, and had not completed, among the first
# dependencies. Indexes: unmet of dependencies, the primary key.
STUCK_DEPENDANTS = """
SELECT job.id, job.task, waiting.needs_job_id
FROM
    (
        SELECT needs_job_id, job_id, pruned_as
        FROM skipqueue_dependency
        WHERE NOT is_met AND after_failure = 'wait'
        ORDER BY needs_job_id
        LIMIT 5000
    ) AS waiting
    JOIN skipqueue_job AS job ON job.id = waiting.job_id
WHERE
    waiting.pruned_as IS DISTINCT FROM 'completed'
    AND (SELECT needed.id FROM skipqueue_job AS needed WHERE needed.id = waiting.needs_job_id) IS NULL
    AND job.held
    AND job.finished_at IS NULL
LIMIT 100
"""

MOST_STUCK = 100
"""How many jobs that returns, at most."""


def stuck_dependants(store: Store) -> Iterator[Finding]:
    """Jobs that wait for one that is not there any more, and had not completed."""
    rows = store.rows(STUCK_DEPENDANTS)
    if rows:
        job_id, task, needs_job_id = rows[0]
        job, needed = (job_name(store.alias, id) for id in (job_id, needs_job_id))
        number = f"{len(rows)}+" if len(rows) >= MOST_STUCK else str(len(rows))
        yield Finding(
            "stuck-dependant",
            Severity.WARNING,
            gettext("Jobs wait for a deleted job"),
            gettext(
                "Job %(id)s (%(task)s) waits for job %(needed)s, which was deleted, or pruned, before it had "
                "completed. Such jobs: %(number)s."
            )
            % {"id": job, "task": printable(task), "needed": needed, "number": number},
            gettext("They wait for ever, and so does what waits for them. Discard them."),
            f"python manage.py skipqueue discard {job} --reason 'it waits for a deleted job'",
        )


def forget_needs(ids: Collection[int], alias: str) -> None:
    """Delete what these jobs, which are being deleted, wait for."""
    Dependency.objects.using(alias).filter(job_id__in=ids).delete()


NAMED = 5
"""The maximum of jobs that the sentence names."""


def why_it_waits_for_jobs(job: Job, _now: datetime) -> str:
    """Which jobs it needs, and whether one of them has not completed; empty if it waits for no job."""
    if not job.held:
        return ""
    unmet = batches.unmet_needs(job, limit=NAMED)
    if not unmet:
        return gettext("The jobs that it needs are finished: it goes into its queue within a second or two.")
    first, number = unmet[0], unmet[0].number
    if first.is_stuck and first.is_gone:
        return gettext(
            "It needs job %(job)s, which was deleted, or pruned, before it had completed: it waits for ever. "
            "Discard it."
        ) % {"job": first.needs_job_id}
    if first.is_stuck:
        return gettext("It needs job %(job)s, which has not completed: retry that one, or discard this one.") % {
            "job": first.needs_job_id
        }
    shown = ", ".join(str(need.needs_job_id) for need in unmet)
    return ngettext("It waits for job %(jobs)s.", "It waits for %(number)s jobs: %(jobs)s.", number) % {
        "number": number,
        "jobs": shown if number <= NAMED else f"{shown}, …",
    }


HEADINGS = ("id", "name", "state", "done", "failed", "created", "finished", "outer")

COLOURS = {"running": YELLOW, "finished": GREEN, "failures": RED}

DEFAULT_LIMIT, MOST = 20, 1_000


class Batches(Subcommand):
    name = "batches"
    help = "List the batches with their progress; show one with its callbacks"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("id", nargs="?", type=int, metavar="ID", help="show this batch; default: list the newest")
        parser.add_argument("--state", choices=list(batches.CONDITIONS), help="list only those that are in this state")
        parser.add_argument("--limit", type=int, default=DEFAULT_LIMIT, metavar="N", help="how many to list")
        parser.add_argument("--json", action="store_true", help="print a JSON object for each batch")

    def run(self, console: Console, **options: Any) -> Exit:
        if options["id"] is not None:
            return _show(console, options["id"], as_json=options["json"])
        if not 1 <= options["limit"] <= MOST:
            raise CommandError(f"--limit must be from 1 to {MOST}.", returncode=Exit.USAGE)
        rows = (
            JobBatch.objects.filter(batches.CONDITIONS[options["state"]])
            if options["state"]
            else JobBatch.objects.all()
        )
        found = batches.batch_states(batches.with_time(rows).order_by("-pk")[: options["limit"]])
        if options["json"]:
            for each in found:
                console.json(each.as_json)
        elif found:
            console.table(HEADINGS, map(_row, found), right=("id", "done", "failed", "outer"))
        else:
            console.say("There is no such batch." if options["state"] else "There is no batch.")
        return Exit.DONE if found else Exit.NEGATIVE


def _show(console: Console, batch_id: int, *, as_json: bool) -> Exit:
    found = batches.batch_state(batch_id) if 0 <= batch_id < 2**63 else None
    if found is None:
        raise CommandError(f"There is no batch {batch_id}. It may have been pruned.")
    callbacks = batches.callbacks_of(found.row)
    if as_json:
        console.json(found.as_json | {"callbacks": [each._asdict() for each in callbacks]})
        return Exit.DONE
    console.table(HEADINGS, [_row(found)], right=("id", "done", "failed", "outer"))
    if callbacks:
        console.line("")
        rows = [[each.name, each.task, str(each.job_id or ""), each.state] for each in callbacks]
        console.table(("callback", "task", "job", "state"), rows, right=("job",))
    return Exit.DONE


def _row(each: batches.BatchState) -> list[str]:
    row = each.row
    return [
        str(row.pk),
        row.name,
        Coloured(str(batches.STATES[each.state]), COLOURS[each.state]),
        each.numbers,
        str(each.failures),
        distance(row.created_at, each.now),
        distance(row.finished_at, each.now) if row.finished_at else "",
        str(row.parent_id or ""),
    ]


def _on_dashboard(_: Any) -> Any:
    from .admin import on_dashboard  # a command does not need the admin

    return on_dashboard()


def _of_job(job: Any) -> Any:
    from .job_page import of_job

    return of_job(job)


def _job_filters() -> Iterable[type[Any]]:
    from .admin import BatchFilter

    return (BatchFilter,)


CONSOLE = PartConsole(
    subcommands=(Batches(),),
    checks=(Check("stuck-dependant", stuck_dependants, _("No job waits for a deleted one")),),
    metrics=(Scraped("batches", open_batches),),
    sections=(
        PartSection(
            name="batches",
            template="admin/django_skipqueue/batches/dashboard.html",
            content=_on_dashboard,
            after="queues",
        ),
    ),
    job_facts=(PartFact(template="admin/django_skipqueue/batches/of_job.html", content=_of_job),),
    job_filters=_job_filters,
    job_columns={"batch_id": "batch"},
    on_delete=forget_needs,
    explain=why_it_waits_for_jobs,
)
