"""The rules that need the history: tasks that fail, workers that die, queues that grow, and storms of retries.

The rules learn from the roll-ups what is usual. They compare a share of failed attempts, a depth or a wait with its
median in this hour of the last seven days. So an event that happens every day raises no finding, and one bad day hardly
changes the median.
"""

import json
import math
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from psycopg.sql import Identifier

from ...conf import settings
from ...console.arguments import named, redacted
from ...console.counts import Count, grouped
from ...console.durations import clock_time, span
from ...console.job_states import RETRYING, is_in
from ...console.parts import consoles
from ...console.queues_and_workers import WorkerHealth, Workforce
from ...console.rules.rule import Finding, PageLink, Rule, Severity, Threshold, database_time, statement
from ...console.search import cause_of, cause_text
from ...events.log_format import job_name, printable
from ...models import Job, Status
from ...models.expressions import has_cause
from ...queue.queues import paused_queues
from ...queue.store import Store
from ...values.codec import shorten
from ...values.counting import added, quantile
from ...values.records import Cause
from .causes import NEW_CAUSE_AGE
from .claim_costs import claim_costs
from .rollups import OTHER_NAME, WORKER_DIED

# Sent by failing-task, worker-deaths. Returns each pair of task and queue with failed attempts or recovered jobs in the
# last ten minutes: the numbers of attempts, of failed attempts and of recovered jobs, and the current time. Index:
# prune of the roll-ups.
RECENT_TASKS = """
SELECT
    task, queue_name, sum(completed + retried + failed + discarded)::bigint, sum(retried + failed)::bigint,
    sum(recovered)::bigint, statement_timestamp()
FROM (
    SELECT task, queue_name, completed, retried, failed, discarded, recovered
    FROM skipqueue_rollup
    WHERE span = 60 AND starts_at > statement_timestamp() - interval '10 minutes'
    ORDER BY starts_at DESC
    LIMIT 20000
) AS recent
WHERE task > ''
GROUP BY task, queue_name
HAVING sum(retried + failed + recovered) > 0
LIMIT 5000
"""

# Sent by failing-task, worker-deaths. Returns the causes with which attempts of these tasks failed in the last ten
# minutes, the commonest cause first. Each row has the number of failed attempts in ten minutes and since the beginning,
# the time and the deployment of the first failed attempt, and the last job. Index: prune of the failures, and for each
# cause prune or the primary key.
RECENT_CAUSES = """
SELECT
    recent.task, recent.exception, recent.place, recent.number, cause.number, cause.first_at, cause.last_job_id,
    cause.first_deployment
FROM
    (
        SELECT task, exception, place, sum(number)::bigint AS number
        FROM (
            SELECT task, exception, place, number
            FROM skipqueue_failure_rollup
            WHERE span = 60 AND starts_at > statement_timestamp() - interval '10 minutes'
            ORDER BY starts_at DESC
            LIMIT 20000
        ) AS failure
        WHERE task = ANY (%(tasks)s::text[])
        GROUP BY task, exception, place
        ORDER BY number DESC
        LIMIT 1000
    ) AS recent
    CROSS JOIN LATERAL (
        SELECT number, first_at, last_job_id, first_deployment
        FROM skipqueue_failure_rollup AS ever
        WHERE
            ever.span = 0
            AND (ever.task, ever.exception, ever.place) = (recent.task, recent.exception, recent.place)
            AND ever.starts_at = to_timestamp(0)
        LIMIT 1
    ) AS cause
ORDER BY recent.number DESC
LIMIT 1000
"""

# Sent by failing-task. For each task in the given queues, takes each day's share of failed attempts in this hour, and
# returns the median of the last seven days. Days without attempts are ignored. Index: the primary key or prune of the
# roll-ups, once for each day.
USUAL_SHARES = """
SELECT task, percentile_cont(0.5) WITHIN GROUP (ORDER BY failed::float8 / attempts)
FROM (
    SELECT
        wanted.task, ago.days, sum(hour.failed) AS failed, sum(hour.attempts) AS attempts
    FROM
        unnest(%(tasks)s::text[], %(queue_names)s::text[]) AS wanted (task, queue_name)
        CROSS JOIN generate_series(1, 7) AS ago (days)
        CROSS JOIN LATERAL (
            SELECT retried + failed AS failed, completed + retried + failed + discarded AS attempts
            FROM skipqueue_rollup
            WHERE
                span = 3600
                AND queue_name = wanted.queue_name
                AND task = wanted.task
                AND starts_at
                    = to_timestamp(floor(date_part('epoch', statement_timestamp()) / 3600) * 3600 - 86400 * ago.days)
            LIMIT 1
        ) AS hour
    GROUP BY wanted.task, ago.days
) AS day
WHERE attempts > 0
GROUP BY task
LIMIT 1000
"""

# Sent by failing-task. For each task, returns the numbers of attempts and of failed attempts in the minutes that began
# after `since`, when a new cause first failed. Index: the primary key of the roll-ups.
SINCE_NEW = """
SELECT wanted.task, sum(minute.attempts)::bigint, sum(minute.failed)::bigint
FROM
    unnest(%(tasks)s::text[], %(queue_names)s::text[], %(since)s::timestamptz[]) AS wanted (task, queue_name, since)
    CROSS JOIN LATERAL (
        SELECT retried + failed AS failed, completed + retried + failed + discarded AS attempts
        FROM skipqueue_rollup
        WHERE
            span = 60
            AND queue_name = wanted.queue_name
            AND task = wanted.task
            AND starts_at > GREATEST(wanted.since, statement_timestamp() - interval '10 minutes')
        LIMIT 10
    ) AS minute
GROUP BY wanted.task
LIMIT 1000
"""

# Sent by failing-task. For each task in the given queues, returns since when it fails: the first minute of the last day
# from which on, in every minute with attempts, at least `share` of the attempts have failed. Index: the primary key of
# the roll-ups.
FAILING_SINCE = """
WITH minute AS MATERIALIZED (
    SELECT
        wanted.task, counted.starts_at, sum(counted.failed) >= %(share)s * sum(counted.attempts) AS fails
    FROM
        unnest(%(tasks)s::text[], %(queue_names)s::text[]) AS wanted (task, queue_name)
        CROSS JOIN LATERAL (
            SELECT starts_at, retried + failed AS failed, completed + retried + failed + discarded AS attempts
            FROM skipqueue_rollup
            WHERE
                span = 60
                AND queue_name = wanted.queue_name
                AND task = wanted.task
                AND starts_at > statement_timestamp() - interval '1 day'
            ORDER BY starts_at
            LIMIT 1500
        ) AS counted
    WHERE counted.attempts > 0
    GROUP BY wanted.task, counted.starts_at
)
SELECT task, min(starts_at)
FROM
    minute
    LEFT JOIN (
        SELECT task, max(starts_at) AS last_good_at FROM minute WHERE NOT fails GROUP BY task
    ) AS good USING (task)
WHERE fails AND starts_at > COALESCE(last_good_at, '-infinity')
GROUP BY task
LIMIT 1000
"""

# Sent by worker-deaths, skipqueue failures. Returns the current series of deaths of workers, in which each death came
# within ten minutes of the death before. The row has the minute and the exact time of the first death, the number of
# workers that have died since, and the number of running jobs that were lost. No row if no worker has died for ten
# minutes. Index: the primary key of the roll-ups, and prune of the failures.
DEATHS_SINCE = """
WITH minute AS MATERIALIZED (
    SELECT starts_at, deaths, recovered, starts_at - lag(starts_at) OVER (ORDER BY starts_at) AS since_last_death
    FROM (
        SELECT starts_at, deaths, recovered
        FROM skipqueue_rollup
        WHERE
            span = 60
            AND queue_name = ''
            AND task = ''
            AND starts_at > statement_timestamp() - interval '1 day'
        ORDER BY starts_at
        LIMIT 1500
    ) AS counted
    WHERE recovered > 0
),
series AS MATERIALIZED (
    SELECT max(starts_at) AS began_at
    FROM minute
    WHERE since_last_death IS NULL OR since_last_death > interval '10 minutes'
)
SELECT
    series.began_at,
    (
        SELECT min(first_at)
        FROM skipqueue_failure_rollup AS failure
        WHERE
            failure.span = 60
            AND failure.starts_at = series.began_at
            AND failure.exception = 'django_skipqueue.exceptions.WorkerDied'
    ),
    sum(minute.deaths)::bigint,
    sum(minute.recovered)::bigint
FROM series JOIN minute ON minute.starts_at >= series.began_at
GROUP BY series.began_at
HAVING max(minute.starts_at) > statement_timestamp() - interval '10 minutes'
LIMIT 1
"""

# Sent by worker-deaths, skipqueue failures. For each task in the given queues, counts three things since a minute: the
# workers that died while they ran the task's jobs, the task's lost jobs, and its completed attempts. Index: the primary
# key of the roll-ups.
DEATHS_OF_TASKS = """
SELECT wanted.task, sum(minute.deaths)::bigint, sum(minute.recovered)::bigint, sum(minute.completed)::bigint
FROM
    unnest(%(tasks)s::text[], %(queue_names)s::text[]) AS wanted (task, queue_name)
    CROSS JOIN LATERAL (
        SELECT deaths, recovered, completed
        FROM skipqueue_rollup
        WHERE
            span = 60
            AND queue_name = wanted.queue_name
            AND task = wanted.task
            AND starts_at >= %(since)s
        LIMIT 1500
    ) AS minute
GROUP BY wanted.task
LIMIT 1000
"""

# Sent by growing-queue, retry-storm. Returns each queue that has had a sample of its depth, or attempts, in the last
# ten minutes. Each row has the depth and the seconds that the oldest job had waited, first eight minutes ago, then now;
# the number of attempts, their mean run time in seconds, and the current time. No row if no supervisor took samples
# eight minutes ago. Index: prune of the roll-ups.
RECENT_QUEUES = """
WITH recent AS MATERIALIZED (
    SELECT
        queue_name, task, starts_at, depth, oldest_seconds, completed + retried + snoozed + failed + discarded AS ended,
        ran_seconds, starts_at < statement_timestamp() - interval '8 minutes' AS is_before,
        starts_at > statement_timestamp() - interval '3 minutes' AS is_now
    FROM skipqueue_rollup
    WHERE span = 60 AND starts_at > statement_timestamp() - interval '11 minutes'
    ORDER BY starts_at DESC
    LIMIT 20000
)
SELECT
    queue_name,
    COALESCE(max(depth) FILTER (WHERE is_before), 0), COALESCE(max(oldest_seconds) FILTER (WHERE is_before), 0),
    COALESCE((array_agg(depth ORDER BY starts_at DESC) FILTER (WHERE is_now AND depth IS NOT NULL))[1], 0),
    COALESCE((array_agg(oldest_seconds ORDER BY starts_at DESC) FILTER (WHERE is_now AND depth IS NOT NULL))[1], 0),
    sum(ended)::bigint, COALESCE(sum(ran_seconds) / NULLIF(sum(ended), 0), 0)::float8, statement_timestamp()
FROM recent
WHERE
    task = ''
    AND queue_name > ''
    AND EXISTS (SELECT FROM recent AS sample WHERE sample.queue_name = '' AND is_before AND sample.depth IS NOT NULL)
GROUP BY queue_name
LIMIT 1000
"""

# Sent by growing-queue, long-wait. For each queue, takes each day's greatest depth and longest wait in the hours around
# this hour (the hour before, this hour and the hour after), and returns the medians of the last seven days. Days
# without jobs are ignored. Index: the primary key or prune of the roll-ups, once for each hour.
USUAL_QUEUES = """
SELECT
    queue_name, percentile_disc(0.5) WITHIN GROUP (ORDER BY depth), percentile_disc(0.5) WITHIN GROUP (ORDER BY oldest)
FROM (
    SELECT wanted.queue_name, ago.days, max(hour.depth) AS depth, max(hour.oldest_seconds) AS oldest
    FROM
        unnest(%(queue_names)s::text[]) AS wanted (queue_name)
        CROSS JOIN generate_series(1, 7) AS ago (days)
        CROSS JOIN generate_series(-1, 1) AS beside (hours)
        CROSS JOIN LATERAL (
            SELECT depth, oldest_seconds
            FROM skipqueue_rollup
            WHERE
                span = 3600
                AND queue_name = wanted.queue_name
                AND task = ''
                AND starts_at = to_timestamp(
                    floor(date_part('epoch', statement_timestamp()) / 3600) * 3600 - 86400 * ago.days
                    + 3600 * beside.hours
                )
            LIMIT 1
        ) AS hour
    WHERE hour.depth IS NOT NULL
    GROUP BY wanted.queue_name, ago.days
) AS day
GROUP BY queue_name
LIMIT 1000
"""

# Sent by no-free-slot, long-wait, held-permit. Returns the histograms of the run times of these tasks, from the rows
# that count since the beginning. Index: the primary key of the roll-ups.
USUAL_RUNS = """
SELECT task, array_to_json(ran)::text
FROM skipqueue_rollup
WHERE span = 0 AND task = ANY (%(tasks)s::text[]) AND ran IS NOT NULL
ORDER BY queue_name, task
LIMIT 1000
"""

# Sent by retry-storm. Reads the first `limit` scheduled jobs that are due within `seconds`. Returns the number of
# retrying jobs among them by queue and task, and the seconds in which all jobs that were read are due: `seconds`, or
# less if there are more than `limit` jobs. Index: admit.
DUE_RETRIES = """
WITH due AS MATERIALIZED (
    SELECT queue_name, task, attempts, run_after
    FROM skipqueue_job
    WHERE status = 'scheduled' AND run_after <= statement_timestamp() + make_interval(secs => %(seconds)s)
    ORDER BY run_after
    LIMIT %(limit)s
)
SELECT
    queue_name, task, count(*),
    (
        SELECT CASE WHEN count(*) < %(limit)s THEN %(seconds)s::float8
            ELSE GREATEST(date_part('epoch', max(run_after) - statement_timestamp()), 1) END
        FROM due
    )
FROM due
WHERE attempts > 0
GROUP BY queue_name, task
ORDER BY 3 DESC
LIMIT 1000
"""

FAILED_SHARE = Threshold("failing-task", 0.2, "share")

FEWEST_ATTEMPTS = 20
"""With fewer attempts in ten minutes, the share of failed attempts says nothing."""

FEWEST_FAILURES, NEARLY_ALL = 5, 0.9
"""New causes make a finding with at least this number of failed attempts, and this share of the task's attempts."""

CRITICAL_SHARE = 0.5

MOST_FAILING_TASKS = 10

MOST_COMPARED, MOST_DATED = 100, 20
"""For how many pairs of task and queue the rule reads the usual share, and for how many the minutes of the last day."""

MOST_CAUSES_ASKED, MOST_JOBS_ASKED = 3, 50
"""The rule asks other parts about the commonest causes of a task, and for each cause about its newest retrying and its
newest failed jobs: the maximum number of causes, and of jobs in each of the two states."""

MOST_RETRYING = 1_000
"""The rule counts the retrying jobs of a cause up to this number."""

TITLE_ERROR_LIMIT, ARGUMENTS_LIMIT = 120, 60
"""The maximum length of an error, and of a job's arguments, in a title."""


@dataclass
class RecentTask:
    """The attempts and recovered jobs of a task in the last ten minutes."""

    name: str
    now: datetime
    queue_names: list[str] = field(default_factory=list)
    attempts: int = 0
    failed: int = 0
    recovered: int = 0

    @property
    def failed_share(self) -> float:
        return self.failed / self.attempts if self.attempts else 0.0


class RecentCause(NamedTuple):
    cause: Cause
    number: int
    """The number of failed attempts in the last ten minutes."""
    number_ever: int
    first_at: datetime
    last_job_id: int
    first_deployment: str
    """The deployment of the first failed attempt; empty if it is unknown."""


def failing_tasks(store: Store) -> Iterator[Finding]:
    """Find tasks whose attempts fail more than usual: a large share of many attempts, or nearly all by a new cause.

    The usual share is the median of this hour on the last seven days. A task fails if its share is above the usual
    share by the threshold. So a task of which 30 % of the attempts always fail raises no finding. The task is not
    reported if rules of parts already report nearly all of the failed jobs, such as the runs of a failing schedule.
    """
    threshold = FAILED_SHARE.of()
    if threshold is None:
        return
    tasks = _recent_tasks(store)
    causes = _recent_causes(store, tasks)
    new_causes = {
        name: new
        for name in tasks
        if (new := [cause for cause in causes[name] if tasks[name].now - cause.first_at < NEW_CAUSE_AGE])
    }
    _count_since(store, tasks, new_causes)
    failing: dict[str, RecentCause | None] = {}  # the tasks that may fail, each with its new cause
    for name, task in tasks.items():
        is_new = _is_nearly_all(sum(cause.number for cause in new_causes.get(name, ())), task.attempts)
        if is_new or (task.attempts >= FEWEST_ATTEMPTS and task.failed_share >= threshold):
            failing[name] = new_causes[name][0] if is_new else None
    worst = sorted((tasks[name] for name in failing), key=lambda task: -task.failed)[:MOST_FAILING_TASKS]
    usual_shares = dict(store.rows(USUAL_SHARES, _task_queue_pairs(worst, MOST_COMPARED))) if worst else {}
    worst = [
        task
        for task in worst
        if task.failed_share - usual_shares.get(task.name, 0.0) >= threshold and causes[task.name]
    ]
    worst = [task for task in worst if not _is_reported(store, causes[task.name], task.now)]
    without_new_cause = _task_queue_pairs([task for task in worst if failing[task.name] is None], MOST_DATED)
    failing_since = (
        dict(store.rows(FAILING_SINCE, without_new_cause | {"share": threshold / 2}))
        if without_new_cause["tasks"]
        else {}
    )
    for task in worst:
        new_cause = failing[task.name]
        since = new_cause.first_at if new_cause else failing_since.get(task.name, task.now - timedelta(minutes=10))
        cause = new_cause or causes[task.name][0]
        usual_share = usual_shares.get(task.name, 0.0)
        yield _failing_task(store, task, cause, since, usual_share, is_new=new_cause is not None)


def _is_reported(store: Store, causes: Sequence[RecentCause], now: datetime) -> bool:
    """Return whether rules of parts already report nearly all of the jobs that failed with these causes."""
    reported = sum(recent.number * _reported_share(store, recent.cause, now) for recent in causes[:MOST_CAUSES_ASKED])
    return reported >= NEARLY_ALL * sum(recent.number for recent in causes)


def _reported_share(store: Store, cause: Cause, now: datetime) -> float:
    """Return the share of the jobs that now fail with this cause and that rules of parts already report."""
    jobs = Job.objects.using(store.alias).filter(has_cause(cause)).order_by("-pk").only("metadata", "finished_at")
    newest = [job for state in (RETRYING, Status.FAILED) for job in jobs.filter(is_in(state))[:MOST_JOBS_ASKED]]
    failing = [job for job in newest if job.finished_at is None or now - job.finished_at < timedelta(minutes=10)]
    reported = sum(part.reported_failures(store, failing) for part in consoles() if part.reported_failures)
    return reported / len(failing) if failing else 0.0


def _is_nearly_all(failed: int, attempts: int) -> bool:
    """Return whether enough of a task's attempts have failed by new causes to make a finding."""
    return failed >= max(FEWEST_FAILURES, NEARLY_ALL * attempts)


def _count_since(store: Store, tasks: dict[str, RecentTask], new_causes: Mapping[str, Sequence[RecentCause]]) -> None:
    """If nearly all attempts of a task have failed since the first failure of a new cause, count only these attempts.

    Otherwise, the successful attempts before a deployment would hide for minutes that the deployment broke the task.
    """
    pairs = _task_queue_pairs(
        sorted((tasks[name] for name in new_causes), key=lambda task: -task.failed), MOST_COMPARED
    )
    pairs["since"] = [new_causes[name][0].first_at for name in pairs["tasks"]]
    for name, attempts, failed in store.rows(SINCE_NEW, pairs) if new_causes else ():
        failed_by_new = sum(cause.number for cause in new_causes[name])  # old causes may explain other failures
        if _is_nearly_all(min(failed, failed_by_new), attempts):
            tasks[name].attempts, tasks[name].failed = attempts, failed


def _task_queue_pairs(tasks: Sequence[RecentTask], most: int) -> dict[str, Any]:
    """Return the pairs of a task and one of its queues, at most `most`, as parameters of a statement."""
    pairs = [(task.name, queue_name) for task in tasks for queue_name in task.queue_names][:most]
    return {"tasks": [name for name, _queue_name in pairs], "queue_names": [queue_name for _name, queue_name in pairs]}


def _failing_task(
    store: Store, task: RecentTask, cause: RecentCause, since: datetime, usual_share: float, *, is_new: bool
) -> Finding:
    jobs = Job.objects.using(store.alias)
    number_retrying, number_failed = (
        Count(
            jobs.filter(has_cause(cause.cause), is_in(state)).values("pk")[: MOST_RETRYING + 1].count(),
            cap=MOST_RETRYING,
        )
        for state in (RETRYING, Status.FAILED)
    )
    job = jobs.filter(pk=cause.last_job_id).first()
    title = gettext(
        "%(task)s has been failing since %(time)s: %(error)s, %(failed)s failed attempts; jobs: %(ended)s failed, "
        "%(retrying)s retrying"
    )
    if is_new and cause.first_deployment:
        title = gettext(
            "%(task)s has been failing since %(time)s, since deployment %(deployment)s: %(error)s, %(failed)s failed "
            "attempts; jobs: %(ended)s failed, %(retrying)s retrying"
        )
    advice = gettext(
        "Job %(job)s has the traceback. Roll the deploy back, or mend the task. Only then run the jobs again: retrying "
        "jobs with run-now, failed jobs with retry."
    )
    verb = ["run-now", "--retrying"] if number_retrying.found else ["retry", "--failed"]
    command = [*verb, "--task", task.name, "--exception", cause_text(cause.cause)]
    succeeded = task.attempts - task.failed
    if job is not None and cause.number > 1 and succeeded and number_retrying.found + number_failed.found == 1:
        title = gettext(
            "Job %(job)s of %(task)s has failed again and again since %(time)s: %(error)s, %(failed)s failed attempts. "
            "Other attempts of the task succeed: %(succeeded)s"
        )
        advice = gettext(
            "Only the arguments of this job can be the cause: look at them. Discard the job, and run it again with "
            "correct arguments; or mend the task, if it should accept these."
        )
        command = ["show" if job.finished_at else "discard", job_name(store.alias, job.pk)]
    return Finding.of(
        Severity.CRITICAL if is_new or task.failed_share >= CRITICAL_SHARE else Severity.WARNING,
        title,
        gettext(
            "Of the last %(attempts)s attempts %(percent)s %% have failed. At this hour %(usual)s %% usually fail."
        ),
        advice,
        shlex.join(["python", "manage.py", "skipqueue", *command]),
        facts={
            "task": printable(task.name),
            "time": clock_time(since, task.now),
            "deployment": printable(cause.first_deployment),
            "error": printable(_last_error(job, cause.cause)),
            "failed": grouped(cause.number_ever if is_new else cause.number),
            "retrying": number_retrying,
            "ended": number_failed,
            "job": job_name(store.alias, cause.last_job_id),
            "succeeded": grouped(succeeded),
            "attempts": grouped(task.attempts),
            "percent": round(100 * task.failed_share),
            "usual": round(100 * usual_share),
        },
        subject=task.name,
        since=since,
        link=PageLink("job_cause", query={"task": task.name, "cause": cause_text(cause.cause)}),
    )


def _last_error(job: Job | None, cause: Cause) -> str:
    """Return the cause's last error in one line, with secrets masked; without this error in the job, the exception."""
    if job is None or cause_of(job) != cause:
        return cause.exception.removeprefix("builtins.")
    error = redacted(job.task, job.args, job.kwargs).text(job.last_error)
    return shorten(error.strip().partition("\n")[0], TITLE_ERROR_LIMIT)


def _recent_tasks(store: Store) -> dict[str, RecentTask]:
    tasks: dict[str, RecentTask] = {}
    for name, queue_name, attempts, failed, recovered, now in store.rows(RECENT_TASKS):
        if OTHER_NAME not in (name, queue_name):
            task = tasks.setdefault(name, RecentTask(name, now))
            task.queue_names.append(queue_name)
            task.attempts += attempts
            task.failed += failed
            task.recovered += recovered
    return tasks


def _recent_causes(
    store: Store, tasks: Iterable[str], *, of_deaths: bool = False
) -> defaultdict[str, list[RecentCause]]:
    """Return the causes of each task, the commonest cause first: either deaths of workers, or all other causes."""
    causes, names = defaultdict[str, list[RecentCause]](list), list(tasks)
    for task, exception, place, *values in store.rows(RECENT_CAUSES, {"tasks": names}) if names else ():
        if (exception == WORKER_DIED) is of_deaths:
            causes[task].append(RecentCause(Cause(task, exception, place), *values))
    return causes


DEATHS = Threshold("worker-deaths", 3, "number")

NAMES_IN_TITLE = 4
"""The maximum number of workers, jobs or tasks that a title names."""

MOST_KILLERS_READ = 100
"""The maximum number of jobs that the rule reads for each task, to find jobs that kill workers."""

PROVEN_DEATHS = 3
"""A recovery fails a job after this many deaths of workers in a row, if the last worker ran only this job."""

SAME_MOMENT = timedelta(minutes=1)
"""The longest time between the last heartbeats of workers that died together."""


class DeathsOfTask(NamedTuple):
    deaths: int
    """The number of deaths of workers that ran a job of the task."""
    lost: int
    """The number of the task's jobs that were recovered."""
    completed: int
    """The number of the task's attempts that completed in the same time."""


@dataclass(frozen=True)
class DeathToll:
    """A series of deaths of workers with jobs. Each death came within ten minutes of the death before."""

    since: datetime
    deaths: int
    lost: int
    of_task: Mapping[str, DeathsOfTask]
    """The numbers of each task that had recovered jobs in the last ten minutes."""

    @property
    def suspects(self) -> list[str]:
        """The tasks that may have killed the workers, because they ran in the most deaths; most lost jobs first."""
        most = max((of_task.deaths for of_task in self.of_task.values()), default=0)
        names = [name for name, of_task in self.of_task.items() if of_task.deaths == most]
        return sorted(names, key=lambda name: -self.of_task[name].lost)


def death_toll(store: Store) -> DeathToll | None:
    """Read the current series of deaths from the roll-ups; `None` if no worker has died in the last ten minutes."""
    recent = [task for task in _recent_tasks(store).values() if task.recovered]
    tasks = sorted(recent, key=lambda task: -task.recovered)
    for since, first_at, deaths, lost in store.rows(DEATHS_SINCE) if tasks else ():
        rows = store.rows(DEATHS_OF_TASKS, _task_queue_pairs(tasks, MOST_COMPARED) | {"since": since})
        of_task = {name: DeathsOfTask(*numbers) for name, *numbers in rows}
        return DeathToll(first_at or since, deaths, lost, of_task)
    return None


def worker_deaths(store: Store) -> Iterator[Finding]:
    """Find workers that died with their jobs, and say why: certain jobs, a machine that is gone, or a running task."""
    threshold, toll = DEATHS.of(), death_toll(store)
    if threshold is None or toll is None or toll.lost < threshold or not toll.of_task:
        return
    suspects, now = toll.suspects, database_time(store)
    causes = _recent_causes(store, suspects, of_deaths=True)
    last_ids = {name: causes[name][0].last_job_id for name in suspects if causes[name]}  # the last lost job of each
    last_jobs = Job.objects.using(store.alias).in_bulk(list(last_ids.values())[:NAMES_IN_TITLE])
    for name in suspects[:NAMES_IN_TITLE]:
        killers = jobs_that_kill(store, name, toll)
        last_lost_job = last_jobs.get(last_ids.get(name, 0))
        if not killers and last_lost_job is not None and _kills_probably(last_lost_job, toll):
            killers = [last_lost_job]
        if killers:
            yield _killing_jobs(store, name, killers, toll, now)
            return
    last_lost_job = last_jobs.get(last_ids.get(suspects[0], 0))
    gone = _gone_with(store, last_lost_job)
    yield _machine_gone(gone, toll, now) if gone else _task_that_kills(last_lost_job, toll, now)


def jobs_that_kill(store: Store, task: str, toll: DeathToll) -> list[Job]:
    """Return the task's jobs that probably killed workers and were therefore failed, the newest first."""
    failed = Job.objects.using(store.alias).filter(
        has_cause(Cause(task, WORKER_DIED, "")), status=Status.FAILED, finished_at__gte=toll.since
    )
    rows = failed.order_by("-id").only("task", "args", "kwargs", "deaths", "finished_at")[:MOST_KILLERS_READ]
    return [job for job in rows if len(job.deaths or ()) >= PROVEN_DEATHS]


def _kills_probably(job: Job, toll: DeathToll) -> bool:
    """Return whether the job was running in at least two deaths of workers, and in at least half of all deaths."""
    deaths = _deaths_of(job)
    return job.finished_at is None and deaths > 1 and 2 * deaths >= toll.deaths


def _killing_jobs(store: Store, task: str, killers: Sequence[Job], toll: DeathToll, now: datetime) -> Finding:
    names = [job_name(store.alias, job.pk) + _arguments(job) for job in killers[:NAMES_IN_TITLE]]
    unfinished = killers[0].finished_at is None
    verb = "discard" if unfinished else "show"
    return Finding.of(
        Severity.CRITICAL,
        ngettext(
            "Job %(jobs)s of %(task)s kills each worker that runs it: since %(time)s %(deaths)s workers have died, and "
            "%(lost)s running jobs were lost. Other attempts of the task succeed: %(completed)s",
            "%(number)s jobs of %(task)s kill each worker that runs them, jobs %(jobs)s: since %(time)s %(deaths)s "
            "workers have died, and %(lost)s running jobs were lost. Other attempts of the task succeed: %(completed)s",
            len(killers),
        ),
        gettext("The other jobs that were lost run again. A job fails once three workers in a row have died of it."),
        gettext("Only the arguments of this job can be the cause: look at them. Discard it, so that no worker runs it.")
        if unfinished
        else gettext(
            "Only the arguments of such jobs can be the cause: look at them. These jobs have failed and do not run "
            "again, but the next job with such arguments kills again: roll the deploy back, or mend the task."
        ),
        shlex.join(["python", "manage.py", "skipqueue", verb, job_name(store.alias, killers[0].pk)]),
        facts={
            "jobs": ", ".join([*names, "…"] if len(killers) > NAMES_IN_TITLE else names),
            "number": len(killers),
            "task": printable(task),
            "time": clock_time(toll.since, now),
            "deaths": grouped(toll.deaths),
            "lost": grouped(toll.lost),
            "completed": grouped(toll.of_task[task].completed),
        },
        subject=task,
        since=toll.since,
        link=PageLink("job_change", (killers[0].pk,)),
    )


def _arguments(job: Job) -> str:
    """Return the arguments of the job in brackets, short and with secrets masked; empty if there are none."""
    call = redacted(job.task, job.args, job.kwargs)
    passed = (
        f"{name}={json.dumps(value, ensure_ascii=False)}"
        for name, value in [*named(job.task, call.args), *call.kwargs.items()]
    )
    text = printable(shorten(", ".join(passed), ARGUMENTS_LIMIT))
    return f" ({text})" if text else ""


def _machine_gone(gone: Sequence[WorkerHealth], toll: DeathToll, now: datetime) -> Finding:
    since = now - max(worker.age for worker in gone)
    return Finding.of(
        Severity.WARNING,
        gettext(
            "Workers and their supervisor have been gone since %(time)s: %(names)s. %(lost)s running jobs were lost"
        ),
        gettext("Each job that was lost runs again."),
        gettext("Look whether the machine of these workers is down. Start runworker there, or on another machine."),
        "python manage.py runworker",
        facts={"time": clock_time(since, now), "names": _names(gone), "lost": grouped(toll.lost)},
        subject=toll.suspects[0],
        since=since,
        link=PageLink("worker_changelist"),
    )


def _task_that_kills(last_lost_job: Job | None, toll: DeathToll, now: datetime) -> Finding:
    suspects = toll.suspects
    of_task = toll.of_task[suspects[0]]
    title = gettext(
        "Workers have been dying since %(time)s: in %(of_task)s of %(deaths)s deaths %(task)s was running, and "
        "%(lost)s running jobs were lost"
    )
    if toll.deaths == 1:
        title = gettext("A worker died at %(time)s while %(task)s was running, and %(lost)s running jobs were lost")
    elif of_task.deaths == toll.deaths:
        title = gettext(
            "Workers have been dying since %(time)s: in every one of %(deaths)s deaths %(task)s was running, and "
            "%(lost)s running jobs were lost"
        )
    messages = (
        [str(error.get("message")) for error in last_lost_job.errors if _is_death(error)] if last_lost_job else []
    )
    cause = messages[-1].partition(";")[0] if messages else ""
    return Finding.of(
        Severity.CRITICAL if toll.deaths > 1 else Severity.WARNING,
        title,
        gettext("Each job that was lost runs again. The last error: %(cause)s."),
        gettext(
            "If the deaths began with a deployment, roll it back. If the kernel ended the workers because memory ran "
            "out, its log (dmesg) says so: have each worker replaced before that, as below, or after a number of jobs "
            "with --max-jobs-per-worker, and let fewer jobs of the task run at once: @job(concurrency=…), or "
            "runworker with a lower --concurrency."
        )
        if "SIGKILL" in cause
        else gettext(
            "Look for “worker died” in the log of runworker, and for the last lines that the task has logged."
        ),
        "python manage.py runworker --max-memory-mb 500" if "SIGKILL" in cause else "python manage.py skipqueue status",
        facts={
            "task": ", ".join(printable(name) for name in suspects[:NAMES_IN_TITLE]),
            "time": clock_time(toll.since, now),
            "deaths": grouped(toll.deaths),
            "of_task": grouped(of_task.deaths),
            "lost": grouped(toll.lost),
            "cause": printable(cause) or "?",
        },
        subject=suspects[0],
        since=toll.since,
        link=PageLink("job_cause", query={"task": suspects[0], "cause": cause_text(Cause("", WORKER_DIED, ""))}),
    )


def _gone_with(store: Store, job: Job | None) -> list[WorkerHealth]:
    """Return the dead workers whose last heartbeat came at the same time as that of this job's dead worker.

    If only this job's worker died, its supervisor has deleted the worker's row, and the list is empty.
    """
    killed_ids = [error.get("worker_id") for error in job.errors if _is_death(error)] if job is not None else []
    dead = [worker for worker in Workforce.now(using=store.alias).workers if not worker.is_live] if killed_ids else []
    ages = [worker.age for worker in dead if worker.id == killed_ids[-1]]
    return [worker for worker in dead if abs(worker.age - ages[0]) < SAME_MOMENT] if ages else []


def _names(workers: Sequence[WorkerHealth]) -> str:
    names = [printable(worker.name) for worker in workers[:NAMES_IN_TITLE]]
    return ", ".join([*names, "…"] if len(workers) > NAMES_IN_TITLE else names)


def _deaths_of(job: Job) -> int:
    """Count the errors of the job that say that its worker died."""
    return sum(map(_is_death, job.errors))


def _is_death(error: Any) -> bool:
    """Return whether an error in a job's row says that its worker died. Another program may have written the row."""
    return isinstance(error, dict) and error.get("exception") == WORKER_DIED


DRAIN = Threshold("growing-queue", 1_800.0, "seconds", has_queues=True)

GROWTH_FACTOR = 1.1
"""A queue grows if its depth is more than its depth of ten minutes ago times this factor."""

UNUSUAL_FACTOR = 1.5
"""A queue is unusually deep if its depth is more than its usual depth at this hour times this factor."""

RECENT_SECONDS = 600.0


class RecentQueue(NamedTuple):
    """A row of `RECENT_QUEUES`, in the order of its columns."""

    name: str
    depth_before: int
    oldest_before: float
    depth: int
    oldest: float
    """Seconds for which the oldest job has waited."""
    attempts: int
    mean_run: float
    now: datetime

    @property
    def seconds_to_empty(self) -> float:
        """How many seconds the workers need to empty the queue, if no other job comes."""
        return self.depth * RECENT_SECONDS / self.attempts


def growing_queues(store: Store) -> Iterator[Finding]:
    """Find queues in which jobs arrive faster than workers run them. Other rules find queues without workers."""
    queues = [RecentQueue(*row) for row in store.rows(RECENT_QUEUES)] if DRAIN.least is not None else []
    growing = {
        queue.name: queue
        for queue in queues
        if queue.attempts
        and queue.depth > GROWTH_FACTOR * queue.depth_before
        and queue.oldest >= queue.oldest_before
        and queue.seconds_to_empty >= (DRAIN.of(queue.name) or math.inf)  # without a threshold, the rule is off
        and queue.name not in settings.external_queues
    }
    not_paused = sorted(growing.keys() - set(paused_queues(store))) if growing else []
    usual = _usual_queues(store, not_paused) if not_paused else {}
    for name in not_paused:
        queue = growing[name]
        usual_depth, _usual_wait = usual.get(name, (0, 0.0))
        since = queue.now - timedelta(seconds=queue.oldest)
        if queue.depth <= UNUSUAL_FACTOR * usual_depth:
            continue
        yield Finding.of(
            Severity.WARNING,
            gettext(
                "Queue %(queue)s has been growing since %(time)s: %(number)s jobs wait, in ten minutes %(came)s came "
                "and %(ran)s were run"
            ),
            gettext(
                "Ten minutes ago %(before)s waited. At this rate the workers need %(span)s for the jobs that wait, if "
                "no other job comes. At this hour %(usual)s usually wait."
            ),
            gettext("Start more workers for this queue."),
            shlex.join(["python", "manage.py", "runworker", "--queues", name]),
            facts={
                "queue": printable(name),
                "time": clock_time(since, queue.now),
                "number": grouped(queue.depth),
                "came": grouped(queue.depth - queue.depth_before + queue.attempts),
                "ran": grouped(queue.attempts),
                "before": grouped(queue.depth_before),
                "span": span(queue.seconds_to_empty),
                "usual": grouped(usual_depth),
            },
            subject=name,
            since=since,
            link=PageLink("job_changelist", query={"status": "queued", "queue": name}),
        )


def _usual_queues(store: Store, names: Sequence[str]) -> dict[str, tuple[int, float]]:
    """Return the usual depth of each queue at this hour, and the seconds that its oldest job usually waits."""
    medians = store.rows(USUAL_QUEUES, {"queue_names": names})
    return {name: (depth, oldest or 0.0) for name, depth, oldest in medians}


def usual_waits(store: Store, queue_names: Sequence[str]) -> dict[str, float]:
    return {name: oldest for name, (_depth, oldest) in _usual_queues(store, queue_names).items()}


USUAL_RUN_SHARE, FEWEST_RUNS = 0.95, 5
"""This share of the attempts take at most the usual run time, which is known after at least this many attempts."""


def usual_runs(store: Store, tasks: Sequence[str]) -> dict[str, float]:
    histograms: defaultdict[str, list[int]] = defaultdict(list)
    for name, buckets in store.rows(USUAL_RUNS, {"tasks": tasks}):
        histograms[name] = added(histograms[name], json.loads(buckets))
    return {
        name: quantile(buckets, USUAL_RUN_SHARE) or 0.0
        for name, buckets in histograms.items()
        if sum(buckets) >= FEWEST_RUNS
    }


STORM = Threshold("retry-storm", 1.0, "share", has_queues=True)

RETRIES_AHEAD_SECONDS = 300.0
"""The rule counts the retrying jobs that are due within this number of seconds."""

MOST_DUE_RETRIES = 10_000
"""The maximum of scheduled jobs that a statement reads. If more jobs are due, the rule estimates their number."""


def retry_storms(store: Store) -> Iterator[Finding]:
    """Find queues whose retrying jobs will take all slots, if they run as long as attempts in the last ten minutes."""
    due: dict[str, list[tuple[str, float]]] = defaultdict(list)  # by queue: the tasks, and how many retries are due
    retry_counts = (
        store.rows(DUE_RETRIES, {"seconds": RETRIES_AHEAD_SECONDS, "limit": MOST_DUE_RETRIES})
        if STORM.least is not None
        else []
    )
    for queue_name, task, number, seconds in retry_counts:
        due[queue_name].append((task, number * RETRIES_AHEAD_SECONDS / seconds))
    queues = {queue.name: queue for queue in (RecentQueue(*row) for row in store.rows(RECENT_QUEUES))} if due else {}
    workforce = Workforce.now(using=store.alias)
    for name in due.keys() & queues.keys():
        slots = sum(worker.slots for worker in workforce.serving(name))
        commonest_task, _number = due[name][0]
        number, threshold = sum(number for _task, number in due[name]), STORM.of(name)
        seconds_of_retries = number * queues[name].mean_run
        seconds_of_slots = slots * RETRIES_AHEAD_SECONDS
        if threshold is None or not slots or seconds_of_retries < threshold * seconds_of_slots:
            continue
        yield Finding.of(
            Severity.WARNING,
            gettext(
                "About %(number)s jobs of queue %(queue)s are retried within five minutes, most of them of %(task)s, "
                "and take all slots"
            ),
            gettext("An attempt takes %(span)s; the workers of the queue have %(slots)s slots. New jobs will wait."),
            gettext("Postpone the retrying jobs, so that new jobs run meanwhile, and mend what makes them fail."),
            shlex.join(["python", "manage.py", "skipqueue", "postpone", "--retrying", "--queue", name, "--for", "30m"]),
            facts={
                "number": grouped(round(number)),
                "queue": printable(name),
                "task": printable(commonest_task),
                "span": span(queues[name].mean_run),
                "slots": slots,
            },
            subject=name,
            link=PageLink("job_changelist", query={"status": "retrying", "queue": name}),
        )


MANY_CLAIM_PAGES = 2_000
"""More pages than a healthy claim reads: 16 MB."""


def expensive_claims(store: Store) -> Iterator[Finding]:
    for cost in claim_costs(store):
        if cost.pages > MANY_CLAIM_PAGES:
            yield Finding.of(
                Severity.WARNING,
                gettext("Claims of queue %(queue)s read many pages"),
                gettext(
                    "To find 100 jobs, a claim reads %(pages)s pages and %(entries)s index entries. A few hundred are "
                    "usual; the others belong to dead rows."
                ),
                gettext(
                    "Vacuum the table. If its dead rows stay, something holds an old snapshot: see the other findings."
                ),
                statement("VACUUM (VERBOSE, ANALYZE) {table};", table=Identifier("skipqueue_job")),
                facts={
                    "queue": printable(cost.queue_name),
                    "pages": grouped(cost.pages),
                    "entries": grouped(cost.rows),
                },
            )


HISTORY_RULES = (
    Rule("failing-task", failing_tasks, _("No task fails more than usual"), is_watched=True, threshold=FAILED_SHARE),
    Rule("worker-deaths", worker_deaths, _("No workers die"), is_watched=True, threshold=DEATHS),
    Rule("growing-queue", growing_queues, _("No queue grows for long"), is_watched=True, threshold=DRAIN),
    Rule("retry-storm", retry_storms, _("There are slots for the next retries"), is_watched=True, threshold=STORM),
    Rule("expensive-claims", expensive_claims, _("Claims read few pages")),
)
