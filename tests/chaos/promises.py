"""Promises: rows that the load, and tasks that defer jobs, write in the transaction that defers the jobs.

Invariant: a promise is committed if and only if its job is committed.
"""

from collections.abc import Iterable
from itertools import pairwise

from django.db import connection

from django_skipqueue.models import Job


def promise(ids: list[int], task: str, *, created: bool = True, priority: int = 0) -> None:
    """Record the jobs in the transaction that defers them. The checks after the run expect each recorded job."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO chaos_promise SELECT gen_random_uuid()::text, id, %s, %s, %s FROM unnest(%s::bigint[]) AS id",
            [created, task, priority, ids],
        )


def promise_all(jobs: Iterable[Job]) -> list[int]:
    """Write a promise for each of these jobs, which may have different tasks. Returns the ids of the jobs."""
    deferred_jobs = list(jobs)
    for job in deferred_jobs:
        promise([job.pk], job.task, priority=job.priority)
    return [job.pk for job in deferred_jobs]


def promise_signal(job_id: int, payload: str) -> None:
    """Write down that a signal was sent, in the transaction that sends it."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO chaos_signal VALUES (%s, %s)", [job_id, payload])


def promise_order(steps: list[list[Job]], after_failure: str) -> None:
    """Record that each job of a step needs each job of the step before."""
    needs = [
        (job.pk, needed_job.pk, after_failure)
        for previous_step, step in pairwise(steps)
        for job in step
        for needed_job in previous_step
    ]
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO chaos_need VALUES (%s, %s, %s)", needs)
