"""Steps, for operators: where a job is, why it waits, metrics, a rule, and what `skipqueue show` prints.

Invariant: what is counted is counted along an index, up to a limit. Results and payloads are masked as arguments are.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...console.arguments import masked
from ...console.cli.options import Choice, job_id
from ...console.cli.subcommand import Exit, Subcommand
from ...console.cli.terminal import Console, operator
from ...console.durations import exact, span
from ...console.metrics.catalogue import Values, measured
from ...console.parts import PartConsole, PartNotice, PartPage, PartSection, PartStatus
from ...console.rules.rule import Finding, Rule, Severity, Threshold
from ...events.log_format import in_words, job_name, printable
from ...models import Job, JobChild, JobSignal, JobStep, Status
from ...queue.store import Store
from ...values.exposition import Metric
from ...values.part import later
from .operate import retry_from_step

LISTED = 200
"""Steps, signals and children that the page of a job lists."""

# steps → the number of jobs that wait for signals and the seconds since the first of them, of signals that nobody has
# taken likewise, and the number of sleeping jobs: at most 10,000 of each are counted. Indexes: waiting and sleeping of
# steps, oldest of signals.
STEP_COUNTS = """
SELECT waiting.number, waiting.seconds, untaken.number, untaken.seconds, sleeping.number
FROM
    (
        SELECT
            count(*) AS number,
            COALESCE(extract(epoch FROM statement_timestamp() - min(started_at)), 0)::float8 AS seconds
        FROM (SELECT started_at FROM skipqueue_step WHERE is_waiting ORDER BY started_at LIMIT 10000) AS step
    ) AS waiting,
    (
        SELECT
            count(*) AS number,
            COALESCE(extract(epoch FROM statement_timestamp() - min(sent_at)), 0)::float8 AS seconds
        FROM (SELECT sent_at FROM skipqueue_signal WHERE taken_at IS NULL ORDER BY sent_at LIMIT 10000) AS signal
    ) AS untaken,
    (
        SELECT count(*) AS number
        FROM (
            SELECT
            FROM skipqueue_step
            WHERE kind = 'sleep' AND wakes_at > statement_timestamp()
            LIMIT 10000
        ) AS step
    ) AS sleeping
LIMIT 1
"""

# untaken-signal → the signals that nobody has taken for `seconds`, of unfinished jobs, among the oldest. Indexes: the
# one of the oldest signals, the primary key.
UNTAKEN = """
SELECT signal.job_id, job.task, signal.name, signal.sent_at
FROM
    (
        SELECT job_id, name, sent_at
        FROM skipqueue_signal
        WHERE taken_at IS NULL AND sent_at < statement_timestamp() - make_interval(secs => %(seconds)s)
        ORDER BY sent_at
        LIMIT 1000
    ) AS signal
    JOIN skipqueue_job AS job ON job.id = signal.job_id
WHERE job.finished_at IS NULL
ORDER BY signal.sent_at
LIMIT 100
"""


class StepCounts(NamedTuple):
    waiting: int
    waiting_seconds: float
    untaken: int
    untaken_seconds: float
    sleeping: int


def step_counts(store: Store) -> StepCounts:
    [row] = store.rows(STEP_COUNTS)
    return StepCounts._make(row)


@measured(
    "steps",
    Metric("skipqueue_jobs_waiting_for_signals", "gauge", "Jobs that wait for a signal: at most 10,000 are counted."),
    Metric("skipqueue_longest_wait_for_signal_seconds", "gauge", "Seconds since the first of these has begun to wait."),
    Metric("skipqueue_untaken_signals", "gauge", "Signals that no task has taken: at most 10,000 are counted."),
    Metric("skipqueue_oldest_untaken_signal_seconds", "gauge", "Seconds since the first of these was sent."),
    Metric("skipqueue_sleeping_jobs", "gauge", "Jobs that sleep between two steps: at most 10,000 are counted."),
)
def measured_steps(store: Store) -> Iterator[Values]:
    for value in step_counts(store):
        yield {(): value}


UNTAKEN_FOR = Threshold("untaken-signal", 24 * 3600, "seconds")


def untaken_signals(store: Store) -> Iterator[Finding]:
    """Signals that their jobs do not take: mostly the task waits for another name."""
    seconds = UNTAKEN_FOR.of()
    rows = [] if seconds is None else store.rows(UNTAKEN, {"seconds": seconds})
    if rows:
        job_id, task, name, sent_at = rows[0]
        job = job_name(store.alias, job_id)
        yield Finding.of(
            Severity.WARNING,
            gettext("Signals are not taken"),
            gettext(
                "The signal “%(name)s” was sent to job %(job)s (%(task)s) at %(time)s, and its task has not taken it. "
                "Such signals: %(number)s."
            ),
            gettext("Compare the name with those that the task waits for. The page of the job shows both."),
            f"python manage.py skipqueue show {job}",
            facts={
                "name": printable(name),
                "job": job,
                "task": printable(task),
                "time": exact(sent_at),
                "number": f"{len(rows)}+" if len(rows) >= 100 else str(len(rows)),
            },
            since=sent_at,
        )


def status(store: Store) -> PartStatus:
    """How many jobs wait for signals, and how many sleep."""
    counts = step_counts(store)
    lines = []
    if counts.waiting:
        lines.append(f"Jobs that wait for signals: {counts.waiting}, the first for {in_words(counts.waiting_seconds)}.")
    if counts.untaken:
        lines.append(f"Signals that no task has taken: {counts.untaken}.")
    if counts.sleeping:
        lines.append(f"Sleeping jobs: {counts.sleeping}.")
    return PartStatus(as_json={"steps": counts._asdict()}, lines=lines)


def why_it_waits_for_a_signal(job: Job, now: datetime) -> str:
    """Which signal it waits for, and until when; empty if it waits for none."""
    if not job.held:
        return ""
    step = JobStep.objects.using(_alias(job)).filter(job_id=job.pk, is_waiting=True).first()
    if step is None:
        return ""
    facts = {"name": step.name, "span": span(now - step.started_at)}
    if step.wakes_at is None:
        return gettext("It waits for the signal “%(name)s”, for %(span)s now.") % facts
    text = gettext("It waits for the signal “%(name)s”, for %(span)s now, and until %(time)s.")
    return text % {**facts, "time": exact(step.wakes_at)}


@dataclass(frozen=True)
class JobSteps:
    """What is recorded of one job."""

    job: Any
    steps: Sequence[JobStep]
    signals: Sequence[JobSignal]
    children: Sequence[tuple[JobChild, str | None]]
    """Each with its status; `None`: it was deleted, or pruned."""
    parents: Sequence[int]

    @classmethod
    def of(cls, job: Any) -> "JobSteps":
        alias = _alias(job)
        steps = list(JobStep.objects.using(alias).filter(job_id=job.pk).order_by("number")[:LISTED])
        signals = list(JobSignal.objects.using(alias).filter(job_id=job.pk).order_by("sent_at")[:LISTED])
        parents = JobChild.objects.using(alias).filter(job_id=job.pk).values_list("parent_id", flat=True)[:LISTED]
        children: list[JobChild] = []
        if any(step.kind == JobStep.Kind.RUN for step in steps):
            rows = JobChild.objects.using(alias).filter(parent_id=job.pk)
            children = list(rows.order_by("name", "position")[:LISTED])
        ids = [child.job_id for child in children]
        statuses = dict(Job.objects.using(alias).filter(pk__in=ids).values_list("pk", "status")) if ids else {}
        return cls(job, steps, signals, [(each, statuses.get(each.job_id)) for each in children], list(parents))

    def __bool__(self) -> bool:
        return bool(self.steps or self.signals or self.parents)

    @property
    def waits_for(self) -> str:
        """The name of the signal that the job waits for; else empty."""
        return next((step.name for step in self.steps if step.is_waiting), "")

    def shown(self, value: Any) -> Any:
        """A result or a payload, with its secrets masked."""
        return masked(self.job.task, value)

    @property
    def as_json(self) -> dict[str, Any]:
        """For programs: times are datetimes."""
        return {
            "steps": [
                {
                    "name": step.name,
                    "kind": step.kind,
                    "attempt": step.attempt,
                    "started_at": step.started_at,
                    "recorded_at": step.recorded_at,
                    "wakes_at": step.wakes_at,
                    "result": self.shown(step.result),
                    "error": self.shown(step.error),
                }
                for step in self.steps
            ],
            "signals": [
                {
                    "name": signal.name,
                    "payload": self.shown(signal.payload),
                    "by": signal.by,
                    "sent_at": signal.sent_at,
                    "taken_at": signal.taken_at,
                }
                for signal in self.signals
            ],
            "children": [
                {"step": child.name, "job_id": child.job_id, "status": state} for child, state in self.children
            ],
            "parents": list(self.parents),
        }


def state_of_step(step: JobStep, job: Any) -> str:
    """What the step has come to, in words."""
    if step.error is not None:
        return gettext("failed")
    if step.kind == JobStep.Kind.SLEEP and job.status == Status.SCHEDULED and step.wakes_at:
        return gettext("sleeps until %(time)s") % {"time": exact(step.wakes_at)}
    if step.recorded_at is not None:
        return gettext("done")
    if step.is_waiting and step.wakes_at:
        return gettext("waits until %(time)s") % {"time": exact(step.wakes_at)}
    if step.kind == JobStep.Kind.EACH:
        done = step.result.get("done") if isinstance(step.result, dict) else None
        return ngettext("%(number)s item done", "%(number)s items done", done or 0) % {"number": done or 0}
    return gettext("waits")


def export(job: Any) -> Mapping[str, Any]:
    """The fields that `skipqueue show --json` prints."""
    found = JobSteps.of(job)
    return found.as_json if found else {}


def lines_about(job: Any) -> Iterator[str]:
    """What `skipqueue show` prints: a line for each step, signal and child."""
    found = JobSteps.of(job)
    for step in found.steps:
        yield f"{step.kind} {step.name}: {state_of_step(step, job)}"
    for signal in found.signals:
        yield f"signal {signal.name}: " + ("taken" if signal.taken_at else "not taken")
    for child, state in found.children:
        yield f"child of {child.name}: job {child.job_id}, {state or 'deleted'}"
    for parent in found.parents:
        yield f"child of job {parent}"


def section_of_job(job: Job) -> PartNotice | None:
    """The steps, signals and children, for the page of a job."""
    found = JobSteps.of(job)
    if not found:
        return None
    return PartNotice(template="admin/django_skipqueue/steps/of_job.html", about=later(f"{ADMIN}.shown_steps")(found))


def forget(ids: Collection[int], alias: str) -> None:
    """Delete what is recorded of these jobs, which are being deleted."""
    JobStep.objects.using(alias).filter(job_id__in=ids).delete()
    JobSignal.objects.using(alias).filter(job_id__in=ids).delete()
    JobChild.objects.using(alias).filter(parent_id__in=ids).delete()


def _alias(job: Any) -> str:
    return job._state.db or settings.database


ADMIN = f"{__package__}.admin"

PAGES = tuple(
    PartPage(
        name=name,
        path=f"<int:job_id>/{name}/",
        view=later(f"{ADMIN}.{name}_view"),
        permission=permission,
        methods=("GET", "HEAD", "POST"),
    )
    for name, permission in (
        ("signal", "django_skipqueue.signal_job"),
        ("retry_from", "django_skipqueue.retry_job"),
        ("run_again_from", "django_skipqueue.add_job"),
    )
)


class SendSignal(Subcommand):
    name = "signal"
    help = "Send a signal to a job that waits for it, or will"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("ids", nargs=1, type=job_id, metavar="ID", help="the id of the job")
        parser.add_argument("name", metavar="NAME", help="the name for which the task waits")
        parser.add_argument("--payload", default="null", metavar="JSON", help="what the task gets; default: null")

    def run(self, console: Console, **options: Any) -> Exit:
        try:
            payload = json.loads(options["payload"])
        except ValueError as error:
            raise CommandError(f"--payload is no JSON: {error}", returncode=Exit.USAGE) from None
        job = _known(options)
        if job.signal(options["name"], payload, by=operator()):
            console.say(f"The signal {printable(options['name'])} was sent to job {job.shown_id}.")
            return Exit.DONE
        console.say(f"Job {job.shown_id} is finished, or has already got a signal of this name.")
        return Exit.NEGATIVE


class RetryFrom(Subcommand):
    name = "retry-from"
    help = "Retry a failed or discarded job, and forget its steps from one of them on"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("ids", nargs=1, type=job_id, metavar="ID", help="the id of the job")
        parser.add_argument("step", metavar="STEP", help="the name of the step")
        parser.add_argument("--reason", default="", help="why; it is kept with the job")

    def run(self, console: Console, **options: Any) -> Exit:
        job, store = _known(options), Store.default()
        if retry_from_step(store, job.pk, options["step"], by=operator(), reason=options["reason"]):
            console.say(f"Job {job.shown_id} is retried from the step {printable(options['step'])} on.")
            return Exit.DONE
        console.say(f"Job {job.shown_id} is not retried: it has not failed, or another job holds its unique key.")
        return Exit.NEGATIVE


def _known(options: Mapping[str, Any]) -> Job:
    choice = Choice(ids=tuple(options["ids"]))
    choice.require_known()
    return Job.objects.get(pk=options["ids"][0])


CONSOLE = PartConsole(
    subcommands=(SendSignal(), RetryFrom()),
    rules=(Rule("untaken-signal", untaken_signals, _("Signals are taken by their jobs"), threshold=UNTAKEN_FOR),),
    metrics=(measured_steps,),
    status=status,
    sections=(
        PartSection(
            name="steps",
            template="admin/django_skipqueue/steps/dashboard.html",
            content=later(f"{ADMIN}.on_dashboard"),
            after="queues",
        ),
    ),
    pages=lambda: PAGES,
    job_filters=later(f"{ADMIN}.job_filters"),
    section_of_job=section_of_job,
    explain=why_it_waits_for_a_signal,
    on_delete=forget,
    export=export,
    lines_about=lines_about,
)
