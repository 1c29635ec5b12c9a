"""What operators see of batches: progress, metrics, a rule about problems, why a job waits, and a subcommand.

The jobs of an open batch are counted by an index, up to a limit. A finished batch has the numbers of jobs in its row.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import starmap
from typing import Any, NamedTuple

from django.core.management.base import CommandError, CommandParser
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...console.cli.facts import print_facts
from ...console.cli.subcommand import Exit, Watchable
from ...console.cli.terminal import GREEN, RED, YELLOW, Coloured, Console
from ...console.counts import MOST_JOBS_COUNTED, MOST_JOBS_OF_BATCH, grouped
from ...console.facts import Renderers, as_json
from ...console.metrics.catalogue import Values, measured
from ...console.parts import BarEntry, PartConsole, PartFact, PartSection
from ...console.rules.jobs_and_workers import number_of
from ...console.rules.rule import Finding, Rule, Severity
from ...events.log_format import job_name, printable
from ...models import FINISHED, Dependency, Job, JobBatch, Status
from ...queue.store import Store
from ...values.exposition import Metric
from ...values.fact import Fact
from ...values.part import later
from .dependencies import UNMET_NEEDS, UnmetNeed
from .finish import batch_progress
from .values import CALLBACK_JOB, CALLBACK_SKIPPED

BATCH_STATES: Mapping[str, Any] = {"running": _("running"), "finished": _("finished"), "failures": _("with failures")}

STATE_CONDITIONS = {
    "running": Q(finished_at=None),
    "finished": Q(finished_at__isnull=False),
    "failures": Q(failed__gt=0) | Q(discarded__gt=0),
}
"""The filter for each state in which an operator lists batches. Each filter has an index, in the order of ids."""

COUNT_SECONDS = 0.05
"""After this many seconds, a batch with more than `MOST_JOBS_COUNTED` jobs of a status is not counted exactly."""

CALLBACKS: Mapping[str, Any] = {
    "on_success": _("on success"),
    "on_failure": _("on failure"),
    "on_finish": _("on finish"),
}


@dataclass(frozen=True)
class BatchState:
    """A batch and the numbers of its jobs, including the jobs of inner batches."""

    row: JobBatch
    now: datetime
    """The time by the database's clock."""
    counts: Mapping[str, int]
    """The number of jobs by status, without zeros, in the order of `Status`."""
    is_lower_bound: bool = False
    """Whether there may be more jobs than `counts` says."""

    @property
    def is_open(self) -> bool:
        return self.row.finished_at is None

    @property
    def state(self) -> str:
        """A key of `BATCH_STATES`. An open batch is `running`, even if jobs have failed."""
        if self.is_open:
            return "running"
        return "failures" if self.failures else "finished"

    @property
    def failures(self) -> int:
        return self.counts.get(Status.FAILED, 0) + self.counts.get(Status.DISCARDED, 0)

    @property
    def done(self) -> int:
        return sum(self.counts.get(status, 0) for status in FINISHED)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def share(self) -> float | None:
        """The finished share of the jobs, from 0.0 to 1.0; `None` if not all jobs were counted."""
        if self.is_lower_bound:
            return None
        return self.done / self.total if self.total else 1.0

    @property
    def numbers(self) -> str:
        """The number of finished jobs, and of all jobs, such as `40/100`."""
        more = "+" if self.is_lower_bound else ""
        return f"{grouped(self.done)}/{grouped(self.total)}{more}"


BATCH_FACTS: tuple[Fact[BatchState], ...] = (
    Fact("id", _("id"), lambda batch: batch.row.pk),
    Fact("batch", _("batch"), lambda batch: batch.row.name, field="name"),
    Fact("state", _("state"), lambda batch: batch.state),
    Fact("progress", _("done"), lambda batch: batch.done, "jobs", field="done"),
    Fact("total", "", lambda batch: batch.total),
    Fact("is_lower_bound", "", lambda batch: batch.is_lower_bound),
    Fact("jobs", _("jobs"), lambda batch: dict(batch.counts), field="counts"),
    Fact("failed", _("failed"), lambda batch: batch.failures, "jobs", field=None),
    Fact("created", _("created"), lambda batch: batch.row.created_at, "time", field="created_at"),
    Fact("finished", _("finished"), lambda batch: batch.row.finished_at, "time", field="finished_at"),
    Fact("outside", _("belongs to"), lambda batch: batch.row.parent_id, field="parent_id"),
)
"""The facts about one batch."""


class Callback(NamedTuple):
    name: str
    """One of `CALLBACKS`."""
    task: str
    job_id: int | None
    """The id of the callback's job; `None` if none was enqueued."""
    state: str
    """The status of the callback's job, or `gone` if it was deleted; without a job `waits`, `skipped`, `not called`."""


def with_time(batches: "QuerySet[JobBatch]") -> "QuerySet[JobBatch]":
    """Add the database's time to each batch, for `batch_states`."""
    return batches.annotate(now=Now())


def batch_states(batches_with_time: Iterable[Any]) -> list[BatchState]:
    """Return the states of one page of batches, a result of `with_time`. Counts a limited number of jobs."""
    batches = list(batches_with_time)
    counts = batch_progress(Store.default(), [batch.pk for batch in batches], most=MOST_JOBS_COUNTED) if batches else {}
    deadline = time.monotonic() + COUNT_SECONDS
    states = []
    for batch in batches:
        most, by_status = MOST_JOBS_COUNTED, counts[batch.pk]
        if _is_capped(batch, by_status, most) and time.monotonic() < deadline:  # count this batch again, further
            most = MOST_JOBS_OF_BATCH
            by_status = batch_progress(Store.default(), [batch.pk], most=most)[batch.pk]
        ordered = {status.value: by_status[status] for status in Status if by_status.get(status)}
        states.append(BatchState(batch, batch.now, ordered, is_lower_bound=_is_capped(batch, by_status, most)))
    return states


def batch_state(batch_id: int) -> BatchState | None:
    batch = with_time(JobBatch.objects.all()).filter(pk=batch_id).first()
    return None if batch is None else batch_states([batch])[0]


def callbacks_of(batch: JobBatch) -> list[Callback]:
    """Return the callbacks of a batch, each with its state. Sends one query."""
    stored = batch.callbacks if isinstance(batch.callbacks, dict) else {}
    calls = {name: stored[name] for name in CALLBACKS if isinstance(stored.get(name), dict)}
    ids = [call[CALLBACK_JOB] for call in calls.values() if isinstance(call.get(CALLBACK_JOB), int)]
    statuses = dict(Job.objects.filter(pk__in=ids).values_list("pk", "status")) if ids else {}
    callbacks = []
    for name, call in calls.items():
        spec, job_id = call.get("spec"), call.get(CALLBACK_JOB)
        task = str(spec.get("task", "")) if isinstance(spec, dict) else ""
        if isinstance(job_id, int):
            callbacks.append(Callback(name, task, job_id, statuses.get(job_id, "gone")))
        elif batch.finished_at is None:
            callbacks.append(Callback(name, task, None, "waits"))
        else:
            callbacks.append(Callback(name, task, None, "skipped" if call.get(CALLBACK_SKIPPED) else "not called"))
    return callbacks


def _is_capped(batch: JobBatch, counts: Mapping[str, int], most: int) -> bool:
    return batch.finished_at is None and any(number >= most for number in counts.values())


def unmet_needs(job: Job, *, limit: int) -> list[UnmetNeed]:
    """Return some of the jobs that this job still waits for, failed and discarded jobs first."""
    store = Store(job._state.db or settings.database)
    return list(starmap(UnmetNeed, store.rows(UNMET_NEEDS, {"id": job.pk, "limit": limit}))) if job.held else []


# Sent by batches. Returns the number of open batches, counted up to 10,000, and the age of the oldest open batch in
# seconds. Index: open of batches.
COUNT_OPEN_BATCHES = """
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


@measured(
    "batches",
    Metric("skipqueue_open_batches", "gauge", "Batches that are not finished, counted up to 10,000."),
    Metric("skipqueue_oldest_open_batch_seconds", "gauge", "Seconds since the oldest of these batches was made."),
)
def open_batches(store: Store) -> Iterator[Values]:
    [(number, seconds)] = store.rows(COUNT_OPEN_BATCHES)
    yield {(): number}
    yield {(): max(seconds, 0.0)}


# Sent by the rule `stuck-dependant`. Returns jobs that wait for a job that was deleted before it completed. Reads the
# first 5,000 dependencies. Indexes: unmet of dependencies, the primary key.
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


def stuck_dependants(store: Store) -> Iterator[Finding]:
    """Find jobs that wait for a job that was deleted before it completed."""
    stuck = store.rows(STUCK_DEPENDANTS)
    if stuck:
        job_id, task, needs_job_id = stuck[0]
        job, needed = job_name(store.alias, job_id), job_name(store.alias, needs_job_id)
        yield Finding.of(
            Severity.WARNING,
            gettext("Jobs wait for a deleted job"),
            gettext(
                "Job %(id)s (%(task)s) waits for job %(needed)s, which was deleted or pruned before it completed. "
                "Jobs that wait like this: %(number)s."
            ),
            gettext("These jobs wait for ever, and so do all jobs that wait for them. Discard them."),
            f"python manage.py skipqueue discard {job} --reason 'it waits for a deleted job'",
            facts={"id": job, "task": printable(task), "needed": needed, "number": number_of(stuck)},
        )


def forget_needs(ids: Collection[int], alias: str) -> None:
    """Delete the dependencies of jobs that are being deleted."""
    Dependency.objects.using(alias).filter(job_id__in=ids).delete()


MOST_NEEDS_NAMED = 5
"""The maximum number of jobs that one sentence names."""


def why_it_waits_for_jobs(job: Job, _now: datetime) -> str:
    """Say which jobs the job waits for, and whether one has failed or was deleted. Empty if it waits for no job."""
    if not job.held:
        return ""
    unmet = unmet_needs(job, limit=MOST_NEEDS_NAMED)
    if not unmet:
        return gettext("The jobs that it waited for are finished. It will be queued within a second or two.")
    first = unmet[0]
    number = first.number
    if first.is_stuck and first.is_gone:
        return gettext(
            "It needs job %(job)s, which was deleted or pruned before it completed, so it waits for ever. Discard it."
        ) % {"job": first.needs_job_id}
    if first.is_stuck:
        return gettext("It needs job %(job)s, which has not completed: retry that job, or discard this one.") % {
            "job": first.needs_job_id
        }
    job_ids = ", ".join(str(need.needs_job_id) for need in unmet)
    return ngettext("It waits for job %(jobs)s.", "It waits for %(number)s jobs: %(jobs)s.", number) % {
        "number": number,
        "jobs": job_ids if number <= MOST_NEEDS_NAMED else f"{job_ids}, …",
    }


BATCH_COLOURS = {"running": YELLOW, "finished": GREEN, "failures": RED}

BATCH_RENDERERS: Renderers[BatchState] = {
    "state": lambda batch: Coloured(str(BATCH_STATES[batch.state]), BATCH_COLOURS[batch.state]),
    "progress": lambda batch: batch.numbers,
    "jobs": None,
}

DEFAULT_LIMIT, MOST_LISTED = 20, 1_000


class Batches(Watchable):
    name = "batches"
    help = "List batches with their progress, or show one batch with its callbacks"
    json_help = "print a JSON object for each batch"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("id", nargs="?", type=int, metavar="ID", help="show this batch; default: list the newest")
        parser.add_argument("--state", choices=list(STATE_CONDITIONS), help="list only batches in this state")
        parser.add_argument("--limit", type=int, default=DEFAULT_LIMIT, metavar="N", help="how many batches to list")

    def run(self, console: Console, **options: Any) -> Exit:
        if options["id"] is not None:
            return _show(console, options["id"], in_json=options["json"])
        if not 1 <= options["limit"] <= MOST_LISTED:
            raise CommandError(f"--limit must be from 1 to {MOST_LISTED}.", returncode=Exit.USAGE)
        found = (
            JobBatch.objects.filter(STATE_CONDITIONS[options["state"]]) if options["state"] else JobBatch.objects.all()
        )
        batches = batch_states(with_time(found).order_by("-pk")[: options["limit"]])
        print_facts(console, BATCH_FACTS, batches, BATCH_RENDERERS, in_json=options["json"])
        if not batches:
            console.say("There is no such batch." if options["state"] else "There is no batch.")
        return Exit.DONE if batches else Exit.NEGATIVE


def _show(console: Console, batch_id: int, *, in_json: bool) -> Exit:
    batch = batch_state(batch_id) if 0 <= batch_id < 2**63 else None
    if batch is None:
        raise CommandError(f"There is no batch {batch_id}. It may have been pruned.")
    callbacks = callbacks_of(batch.row)
    if in_json:
        console.json(as_json(BATCH_FACTS, batch) | {"callbacks": [callback._asdict() for callback in callbacks]})
        return Exit.DONE
    print_facts(console, BATCH_FACTS, [batch], BATCH_RENDERERS)
    if callbacks:
        console.line("")
        rows = [[callback.name, callback.task, str(callback.job_id or ""), callback.state] for callback in callbacks]
        console.table(("callback", "task", "job", "state"), rows, right=("job",))
    return Exit.DONE


CONSOLE = PartConsole(
    bar_entries=(BarEntry(label=_("Batches"), page="jobbatch_changelist", place=70, permission="view_jobbatch"),),
    subcommands=(Batches(),),
    rules=(Rule("stuck-dependant", stuck_dependants, _("No job waits for a deleted job")),),
    metrics=(open_batches,),
    sections=(
        PartSection(
            name="batches",
            template="admin/django_skipqueue/batches/dashboard.html",
            content=later(f"{__package__}.admin.on_dashboard"),
            after="queues",
        ),
    ),
    job_facts=(
        PartFact(template="admin/django_skipqueue/batches/of_job.html", content=later(f"{__package__}.admin.of_job")),
    ),
    job_filters=later(f"{__package__}.admin.job_filters"),
    job_columns={"batch_id": "batch"},
    on_delete=forget_needs,
    explain=why_it_waits_for_jobs,
)
