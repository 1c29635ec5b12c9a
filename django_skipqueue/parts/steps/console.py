"""What operators see of steps: where a job is, why it waits, metrics, a rule, and what `skipqueue show` prints.

Invariant: every count reads an index, and stops at a limit. Results and payloads are masked as arguments are.
"""

import json
from argparse import ArgumentTypeError
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from django import forms
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...console.arguments import masked
from ...console.durations import exact, span
from ...console.metrics.catalogue import Values, measured
from ...console.parts import PartConsole, PartNotice, PartSection, PartStatus, why_held_elsewhere
from ...console.rules.rule import Finding, Rule, Severity, Threshold
from ...console.verbs.options import OVER, VerbOption, validator_from
from ...console.verbs.table import copyable
from ...console.verbs.verb import Action, Button, Instruction, Verb
from ...events.log_format import in_words, job_name, printable
from ...exceptions import InvalidArguments, InvalidOption
from ...models import FINISHED, UNFINISHED, Job, JobChild, JobSignal, JobStep, Status
from ...models.copies import copy_refusal
from ...models.job import AbstractJob
from ...queue.parameters import as_array
from ...queue.store import Store
from ...values.exposition import Metric
from ...values.part import later
from .operate import retry_from
from .signals import as_stored_json, check_name, send_signal
from .verbs import run_again_from

ADMIN = f"{__package__}.admin"

MOST_RECORDS_LISTED = 200
"""The maximum number on the page of a job: of its last steps, of its first signals, and of its first children."""

MOST_LEVELS_OF_CHILDREN = 5
"""The maximum number of levels on which children of children are shown."""

# Sent by the metrics `steps`, and pages. Returns the number of jobs that wait for signals, and the seconds since the
# first of them began to wait; the number of signals that nobody has taken, and the seconds since the first of them was
# sent; and the number of sleeping jobs. Counts at most 10,000 of each. Indexes: waiting and sleeping of steps, oldest
# of signals, the primary key of jobs.
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
            SELECT job_id
            FROM skipqueue_step
            WHERE kind = 'sleep' AND wakes_at > statement_timestamp()
            ORDER BY wakes_at
            LIMIT 10000
        ) AS step
        WHERE EXISTS (SELECT FROM skipqueue_job AS job WHERE job.id = step.job_id AND job.status = 'scheduled')
    ) AS sleeping
LIMIT 1
"""

# Sent by untaken-signal. Returns the signals to unfinished jobs that were sent more than `seconds` ago and that nobody
# has taken. Reads the oldest 1,000 such signals. Indexes: oldest of signals, the primary key of jobs.
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


# Sent by the verbs of operators, in the transaction that deletes jobs. Deletes their steps, signals and children.
# Indexes: the primary keys.
FORGET = """
WITH steps AS (
    DELETE FROM skipqueue_step WHERE job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
),
signals AS (
    DELETE FROM skipqueue_signal WHERE job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
)
DELETE FROM skipqueue_child WHERE parent_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
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
    """Find signals that their jobs do not take, usually because the task waits for another name."""
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
    """Return how many jobs wait for signals, and how many sleep, for `skipqueue status`."""
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
    """Say which signal the job waits for, and until when; empty if the job waits for none."""
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
    """What is recorded of one job: its steps, signals and children."""

    job: Any
    steps: Sequence[JobStep]
    signals: Sequence[JobSignal]
    children: Sequence["ChildJob"]
    parents: Sequence[int]

    @classmethod
    def of(cls, job: Any) -> "JobSteps":
        if records := getattr(job, "records", None):
            return cls._archived(job, records)
        alias = _alias(job)
        steps = list(JobStep.objects.using(alias).filter(job_id=job.pk).order_by("-number")[:MOST_RECORDS_LISTED])[::-1]
        signals = list(JobSignal.objects.using(alias).filter(job_id=job.pk).order_by("sent_at")[:MOST_RECORDS_LISTED])
        parents = (
            JobChild.objects.using(alias)
            .filter(job_id=job.pk)
            .values_list("parent_id", flat=True)[:MOST_RECORDS_LISTED]
        )
        has_children = any(step.kind == JobStep.Kind.RUN for step in steps)
        children = tree_of(job.pk, alias) if has_children else ()
        return cls(job, steps, signals, children, list(parents))

    @classmethod
    def _archived(cls, job: Any, records: Mapping[str, Any]) -> "JobSteps":
        """Return what the archive keeps of the job."""
        steps = [_from_json(JobStep, row) for row in records["steps"][-MOST_RECORDS_LISTED:]]
        signals = [_from_json(JobSignal, row) for row in (records["signals"] or ())[:MOST_RECORDS_LISTED]]
        rows = [_from_json(JobChild, row) for row in (records["children"] or ())[:MOST_RECORDS_LISTED]]
        return cls(job, steps, signals, _as_children(rows, _alias(job)), ())

    @property
    def left_out(self) -> int:
        """How many steps there are before the first step in `steps`."""
        return self.steps[0].number - 1 if self.steps else 0

    def __bool__(self) -> bool:
        return bool(self.steps or self.signals or self.parents)

    def shown(self, value: Any) -> Any:
        """Return a result or a payload with its secrets masked."""
        return masked(self.job.task, value)

    @property
    def as_json(self) -> dict[str, Any]:
        """Return the records for programs: times are datetimes."""
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
                    "reason": signal.reason,
                    "sent_at": signal.sent_at,
                    "taken_at": signal.taken_at,
                }
                for signal in self.signals
            ],
            "children": [child.as_json for child in self.children],
            "parents": list(self.parents),
        }


Record = TypeVar("Record", JobStep, JobSignal, JobChild)


def _from_json(model: type[Record], row: Mapping[str, Any]) -> Record:
    """Make a row of a model from the JSON that the archive keeps of it."""
    columns = [field for field in model._meta.concrete_fields if field.attname in row]
    return model(**{column.attname: column.to_python(row[column.attname]) for column in columns})


@dataclass
class ChildJob:
    """A child of a job, with its own children."""

    row: JobChild
    status: str | None
    """`None` if the job was deleted or pruned."""
    children: list["ChildJob"] = field(default_factory=list)

    @property
    def as_json(self) -> dict[str, Any]:
        grandchildren = {"children": [child.as_json for child in self.children]} if self.children else {}
        return {"step": self.row.name, "job_id": self.row.job_id, "status": self.status, **grandchildren}


def tree_of(job_id: int, alias: str) -> list[ChildJob]:
    """Return the children of a job, the children of these children, and so on.

    Reads at most `MOST_RECORDS_LISTED` jobs on `MOST_LEVELS_OF_CHILDREN` levels.

    Index: the primary key of children, once for each level.
    """
    tree: list[ChildJob] = []
    children_of: dict[int, list[ChildJob]] = {job_id: tree}  # by the id of each job on this level
    jobs_left = MOST_RECORDS_LISTED  # how many jobs may still be read
    for _level in range(MOST_LEVELS_OF_CHILDREN):
        rows = JobChild.objects.using(alias).filter(parent_id__in=children_of).order_by("parent_id", "name", "position")
        found = _as_children(list(rows[:jobs_left]), alias)
        for child in found:
            children_of[child.row.parent_id].append(child)
        jobs_left -= len(found)
        children_of = {child.row.job_id: child.children for child in found}
        if not children_of or not jobs_left:
            break
    return tree


def _as_children(rows: Sequence[JobChild], alias: str) -> list[ChildJob]:
    ids = [row.job_id for row in rows]
    statuses = dict(Job.objects.using(alias).filter(pk__in=ids).values_list("pk", "status")) if ids else {}
    return [ChildJob(row, statuses.get(row.job_id)) for row in rows]


def state_of_step(step: JobStep, job: Any) -> str:
    """Describe the state of a step in words."""
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
    """Return the fields that `skipqueue show --json` prints."""
    recorded = JobSteps.of(job)
    return recorded.as_json if recorded else {}


def lines_about(job: Any) -> Iterator[str]:
    """Yield what `skipqueue show` prints: a line for each step, signal and child."""
    recorded = JobSteps.of(job)
    if recorded.left_out:
        yield f"steps before these: {recorded.left_out}"
    for step in recorded.steps:
        yield f"{step.kind} {step.name}: {state_of_step(step, job)}"
    for signal in recorded.signals:
        yield f"signal {signal.name}: " + ("taken" if signal.taken_at else "not taken")
    yield from _lines_of_tree(recorded.children)
    for parent in recorded.parents:
        yield f"child of job {parent}"


def _lines_of_tree(children: Sequence[ChildJob], indent: str = "") -> Iterator[str]:
    for child in children:
        yield f"{indent}child of {child.row.name}: job {child.row.job_id}, {child.status or 'deleted'}"
        yield from _lines_of_tree(child.children, indent + "  ")


def section_of_job(job: AbstractJob) -> PartNotice | None:
    """Return the steps, signals and children for the page of a job."""
    recorded = JobSteps.of(job)
    if not recorded:
        return None
    return PartNotice(
        template="admin/django_skipqueue/steps/of_job.html", about=later(f"{ADMIN}.shown_steps")(recorded)
    )


def forget(ids: Collection[int], alias: str) -> None:
    """Delete the steps, signals and children of these jobs, which are being deleted."""
    Store(alias).execute(FORGET, {"ids": as_array(ids)})


def _alias(job: Any) -> str:
    return job._state.db or settings.database


def has_steps(job: Job) -> bool:
    return JobStep.objects.using(_alias(job)).filter(job_id=job.pk).exists()


def _why_no_signal(job: Job, instruction: Instruction) -> str:
    name = instruction.options["signal_name"]
    if not JobSignal.objects.using(_alias(job)).filter(job_id=job.pk, name=name).exists():
        return ""
    return gettext("Job %(id)s has already got a signal “%(name)s”.") % {"id": job.pk, "name": printable(name)}


def _why_no_step(job: Job, instruction: Instruction) -> str:
    step = instruction.options["step"]
    if JobStep.objects.using(_alias(job)).filter(job_id=job.pk, name=step).exists():
        return ""
    return gettext("Job %(id)s has no step “%(step)s”.") % {"id": job.pk, "step": printable(step)}


def _json(text: str) -> Any:
    """Parse the value of `--payload`. Raises `ArgumentTypeError`."""
    try:
        value = json.loads(text)
        as_stored_json("The payload", value)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is no JSON: {error}") from None
    except InvalidArguments as error:
        raise ArgumentTypeError(str(error)) from None
    return value


def _name(text: str) -> str:
    """Check the value of `--name` and `--step`. Raises `ArgumentTypeError`."""
    try:
        return check_name(text)
    except InvalidOption as error:
        raise ArgumentTypeError(str(error)) from None


TEXT_ATTRIBUTES = {"class": "vTextField"}

SIGNAL_NAME = VerbOption(
    name="signal_name",
    parameter="name",
    field=lambda: forms.CharField(
        label=_("Name"),
        help_text=_("The name that the task gives to context.wait."),
        validators=[validator_from(check_name, _("No signal can have this name."))],
        widget=forms.TextInput(TEXT_ATTRIBUTES),
    ),
    flag="--name",
    metavar="NAME",
    parse=_name,
    help="the name for which the task waits",
)

PAYLOAD = VerbOption(
    name="payload",
    field=lambda: forms.JSONField(
        label=_("Payload"),
        help_text=_("JSON, such as {“approved”: true}. Without a payload, the task gets None."),
        validators=[
            validator_from(lambda value: as_stored_json("The payload", value), _("This JSON cannot be stored."))
        ],
        required=False,
        widget=forms.Textarea({"rows": 4, "class": "vLargeTextField"}),
    ),
    flag="--payload",
    metavar="JSON",
    parse=_json,
    help="what the task gets; default: null",
)

STEP = VerbOption(
    name="step",
    field=lambda: forms.CharField(
        label=_("Step"),
        help_text=_("The name of the step, as the page of a job shows it."),
        validators=[validator_from(check_name, _("No step can have this name."))],
        widget=forms.TextInput(TEXT_ATTRIBUTES),
    ),
    flag="--step",
    metavar="STEP",
    parse=_name,
    help="the name of the step",
)

VERBS = (
    Verb(
        name="signal",
        help="Send a signal to jobs that wait for it, or will",
        permission="signal",
        statuses=UNFINISHED,
        is_for=has_steps,
        options=(SIGNAL_NAME, PAYLOAD),
        change=send_signal,
        exception="that got a signal of this name before",
        why_unchanged=_why_no_signal,
        button=Button(
            label=_("Send signal"),
            hint=_("The task gets the payload from context.wait with this name. A signal of one name is sent once."),
            question_title=_("Send a signal to job %(id)s"),
            done=_("The signal “%(signal_name)s” was sent to job %(id)s."),
        ),
        action=Action(
            label=_("Send a signal to selected %(verbose_name_plural)s"),
            explanation=_(
                "The task of each job gets the payload from context.wait with this name. A job that has got a signal "
                "of this name gets no second one."
            ),
            question_title=ngettext_lazy("Signal %(number)s job", "Signal %(number)s jobs", "count"),
            done=ngettext_lazy("%(number)s job got the signal.", "%(number)s jobs got the signal.", "count"),
        ),
        done=_("signalled"),
        leads_to=Status.QUEUED,
    ),
    Verb(
        name="retry_from",
        help="Retry failed or discarded jobs, and forget their steps from one of them on",
        permission="retry",
        statuses={Status.FAILED, Status.DISCARDED},
        is_for=has_steps,
        default_statuses=(Status.FAILED,),
        options=(STEP, OVER),
        change=retry_from,
        exception="that has no such step, whose unique key another job holds, or that changed meanwhile",
        why_unchanged=_why_no_step,
        button=Button(
            label=_("Retry from step"),
            hint=_("The records of this step and of all later steps are forgotten, and the job is retried."),
            question_title=_("Retry job %(id)s from a step"),
            done=_("Job %(id)s is retried from the step “%(step)s”."),
        ),
        action=Action(
            label=_("Retry selected %(verbose_name_plural)s from a step"),
            explanation=_(
                "The records of this step and of all later steps are forgotten, and the jobs are retried. "
                "A job without such a step stays as it is."
            ),
            question_title=ngettext_lazy(
                "Retry %(number)s job from a step", "Retry %(number)s jobs from a step", "count"
            ),
            done=ngettext_lazy(
                "%(number)s job was put back into its queue.",
                "%(number)s jobs were put back into their queues.",
                "count",
            ),
        ),
        done=_("retried from a step"),
        leads_to=Status.QUEUED,
    ),
    Verb(
        name="run_again_from",
        help="Enqueue copies of finished jobs that have the records before one of their steps",
        permission="add",  # a copy is a new job
        statuses=FINISHED,
        is_for=has_steps,
        default_statuses=(),
        options=(STEP,),
        change=lambda store, ids, step, **noted: run_again_from(copyable(store, ids), step, **noted),
        exception="that has no such step, whose unique key another job holds, or that cannot be run again",
        why_unchanged=lambda job, instruction: (
            copy_refusal(job) or why_held_elsewhere(job) or _why_no_step(job, instruction)
        ),
        button=Button(
            label=_("Run again from step, as a new job"),
            hint=_("A copy of this job is enqueued, with the records of the steps before this step."),
            question_title=_("Run job %(id)s again from a step, as a new job"),
            done=_("This is job %(copy)s, a copy of job %(id)s from the step “%(step)s” on."),
        ),
        action=Action(
            label=_("Run selected %(verbose_name_plural)s again from a step, as new jobs"),
            explanation=_(
                "Copies of the finished jobs are enqueued, with the records of the steps before this step. "
                "A job without such a step is not copied."
            ),
            question_title=ngettext_lazy(
                "Run %(number)s job again from a step", "Run %(number)s jobs again from a step", "count"
            ),
            done=ngettext_lazy(
                "%(number)s job was enqueued again, as a new job.",
                "%(number)s jobs were enqueued again, as new jobs.",
                "count",
            ),
        ),
        done=_("run again from a step"),
        leads_to=Status.QUEUED,
        log_entry=_("Run again from a step as job %(copy)s."),
        log_entry_of_copy=_("Copied from job %(id)s, with the records of its first steps."),
    ),
)


CONSOLE = PartConsole(
    verbs=VERBS,
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
    job_filters=later(f"{ADMIN}.job_filters"),
    section_of_job=section_of_job,
    explain=why_it_waits_for_a_signal,
    on_delete=forget,
    export=export,
    lines_about=lines_about,
)
