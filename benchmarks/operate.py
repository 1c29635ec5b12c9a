"""`python -m benchmarks.operate [--jobs N]`: how long the pages of the admin and the commands of operators take.

The script fills a new database on the server of DATABASE_URL with jobs of all statuses, in four queues, of five tasks,
with three days of roll-ups, jobs that wait for limits, batches, schedules and entries in Django's log. With `--keep` it
uses the database of DATABASE_URL itself, which is filled once and can be measured again.
The time of a page is that of the whole request, in-process, by Django's test client: middleware, session, every query,
the template. The time of a command is that of its call in this process, without the start of Python. The columns
"Python" and "PostgreSQL" are times on a processor: of this process, and of the server's process of its connection (if
the server runs here). The last line counts the pages of which Python takes more than 200 ms.
"""

import argparse
import contextlib
import io
import os
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import django
import environ
from django.conf import settings

from .databases import about_server, fresh_database
from .operate_sql import (
    FILL,
    FILL_ACTIONS,
    FILL_ARCHIVE,
    FILL_BATCHES,
    FILL_BLOCKED,
    FILL_FAILURES,
    FILL_LOG,
    FILL_ROLLUPS,
    FILL_SCHEDULES,
)

ADMIN = "/admin/django_skipqueue/"

PAGES = {
    "password (no query of ours)": "/admin/password_change/",
    "`/metrics`": "/metrics/skipqueue",
    "the start page of the admin": "/admin/",
    "the start page of the queue": "",
    "dashboard": "job/dashboard/",
    "dashboard, 7 days": "job/dashboard/?range=7d",
    "failing now": "job/failures/",
    "doctor": "job/doctor/",
    "queues": "queue/",
    "a queue": "queue/mail/change/",
    "question: pause a queue": "queue/pause/?queue=mail",
    "question: limit a queue": "queue/limit/?queue=mail",
    "question: rate of a queue": "queue/rate/?queue=mail",
    "workers": "worker/",
    "a worker": "worker/%(worker)s/change/",
    "question: restart a worker": "worker/restart/?%(worker_query)s",
    "cause": "job/failures/cause/?%(cause)s",
    "a task": "job/task/?task=shop.jobs.send_receipt",
    "limits": "job/limits/",
    "limits, from a key": "job/limits/?from=limit:shop.jobs.push+account_id=5",
    "schedules": "schedule/",
    "a schedule": "schedule/%(schedule)s/change/",
    "history of a schedule": "schedule/%(schedule)s/history/",
    "a new schedule": "schedule/add/",
    "batches": "jobbatch/",
    "batches that have failures": "jobbatch/?state=failures",
    "batches: search": "jobbatch/?q=nothing",
    "a batch that runs": "jobbatch/%(batch)s/change/",
    "a failed job": "job/%(failed)s/change/",
    "a job that waits for a permit": "job/%(blocked)s/change/",
    "history of a job": "job/%(failed)s/history/",
    "history of an archived job": "archivedjob/%(archived)s/history/",
    "question: discard a job": "job/%(queued)s/discard/",
    "question: reschedule a job": "job/%(queued)s/reschedule/",
    "question: delete a job": "job/%(failed)s/delete/",
    "form: edit a job": "job/%(failed)s/edit/",
    "form: run a job again": "job/%(failed)s/run-again/",
    "progress of an action": "job/%(action)s/progress/",
    "progress of a search": "job/%(search)s/progress/",
    "jobs of a search": "job/?found=%(search)s",
    "status blocked": "job/?status=blocked",
    "jobs of a key": "job/?status=blocked&limit_of=%(blocked)s",
    "jobs of a batch": "job/?batch=%(batch)s",
    "jobs of a cause": "job/?status=failed&%(cause)s",
    "all jobs": "job/",
    "all jobs, last page": "job/?p=200",
    "status completed": "job/?status=completed",
    "status queued": "job/?status=queued",
    "status failed": "job/?status=failed",
    "status scheduled": "job/?status=scheduled",
    "status retrying": "job/?status=retrying",
    "status running": "job/?status=running",
    "status discarded": "job/?status=discarded",
    "failed in one queue": "job/?status=failed&queue=mail",
    "one queue": "job/?queue=mail",
    "one task": "job/?task=shop.jobs.refund",
    "a task without jobs": "job/?task=nothing",
    "queued of a task without jobs": "job/?status=queued&task=nothing",
    "last hour": "job/?time=hour",
    "failed in the last hour": "job/?status=failed&time=hour",
    "an hour of the past": "job/?%(hour)s",
    "queued in an hour of the past": "job/?status=queued&%(hour)s",
    "one task in an hour of the past": "job/?task=shop.jobs.refund&%(hour)s",
    "search: an id": "job/?q=4711",
    "search: a part of a task's name": "job/?q=receipt",
    "search: an argument that is there": "job/?q=payment_id=%(last)s",
    "search: an argument that is not": "job/?q=payment_id=-1",
    "search: by index, of all tasks": "job/?q=payment_id=%(first)s",
    "search: by index, of its task": "job/?q=payment_id=%(first)s&task=shop.jobs.send_receipt",
    "archive: all jobs": "archivedjob/",
    "archive: all jobs, last page": "archivedjob/?p=20",
    "archive: status failed": "archivedjob/?status=failed",
    "archive: status completed": "archivedjob/?status=completed",
    "archive: one task": "archivedjob/?task=shop.jobs.refund",
    "archive: failed of one task": "archivedjob/?status=failed&task=shop.jobs.refund",
    "archive: a task without jobs": "archivedjob/?task=nothing",
    "archive: one queue": "archivedjob/?queue=mail",
    "archive: a period of the past": "archivedjob/?before=2020-01-01T00:00",
    "archive: search: an id": "archivedjob/?q=%23%(archived)s",
    "archive: search: an argument that is not": "archivedjob/?q=payment_id=-1",
    "archive: page of one job": "archivedjob/%(archived)s/change/",
}

QUESTIONS = {
    "question: retry all failed": ("job/?status=failed", "retry_selected"),
    "question: discard all queued": ("job/?status=queued", "discard_selected"),
    "question: delete all completed": ("job/?status=completed", "delete_selected"),
    "question: postpone all of a task": ("job/?status=queued&task=shop.jobs.refund", "postpone_selected"),
    "question: run all retrying now": ("job/?status=retrying", "run_now_selected"),
    "question: retry all of a cause": ("job/?status=failed&%(cause)s", "retry_selected"),
}
"""Pages that ask for confirmation of an action on all jobs of a list. The address of the list, and the action."""

COMMANDS = (
    "skipqueue status",
    "skipqueue list --status failed",
    "skipqueue list --arg payment_id=42",
    "skipqueue list --arg payment_id=5 --task shop.jobs.send_receipt",
    "skipqueue doctor",
)


def send_receipt(payment_id: int, email: str) -> None:
    """A task with an index for searches by `payment_id`."""


def main() -> None:
    """Fill a database, open each page, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operate", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="rows in the table (default: %(default)s)")
    parser.add_argument("--archived", type=int, default=1_000_000, help="rows in the archive (default: %(default)s)")
    parser.add_argument(
        "--keep", action="store_true", help="use the database of DATABASE_URL, fill it if it is empty, and leave it"
    )
    parser.add_argument("--repeat", type=int, default=7, help="times that each page is opened (default: %(default)s)")
    options = parser.parse_args()
    with nullcontext(os.environ) if options.keep else fresh_database() as environment:
        configure(environment["DATABASE_URL"])
        print(f"Django {django.__version__}, {about_server()}\n")
        print(f"| at {options.jobs:,} jobs | Python | PostgreSQL | median | slowest |")
        print("|---|---|---|---|---|", flush=True)
        try:
            measure(options.jobs, options.archived, options.repeat)
        finally:
            from django.db import connections

            connections.close_all()


def configure(url: str) -> None:
    """Configure Django with only the apps that the admin needs."""
    settings.configure(
        DATABASES={"default": environ.Env.db_url_config(url)},
        INSTALLED_APPS=[
            "django.contrib.admin",
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.messages",
            "django.contrib.sessions",
            "django_skipqueue",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
        ROOT_URLCONF="tests.urls",
        STATIC_URL="static/",
        SECRET_KEY="only-for-benchmarks",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        ALLOWED_HOSTS=["testserver"],
        USE_TZ=True,
        SKIPQUEUE={"SEARCHABLE": {"shop.jobs.send_receipt": ["payment_id"]}},
    )
    django.setup()


def measure(jobs: int, archived: int, repeat: int) -> None:
    """Print a line for each page and each command."""
    from django.contrib.admin.utils import quote
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db import connection
    from django.test import Client
    from django.utils import timezone

    from django_skipqueue import job
    from django_skipqueue.console.search import cause_query
    from django_skipqueue.models import Job, JobBatch, Schedule, Worker
    from django_skipqueue.models.copies import BULK_TASK
    from django_skipqueue.values.records import Cause

    call_command("migrate", verbosity=0)
    boss = User.objects.filter(username="admin").first() or User.objects.create_superuser("admin")
    if not Job.objects.exists():
        fill(jobs, archived, boss.pk)
    job(name="shop.jobs.send_receipt")(
        import_module("benchmarks.operate").send_receipt
    )  # import_module, because the function of `__main__` cannot be a task
    run("skipqueue index")
    middle = Job.objects.earliest("pk").enqueued_at + (timezone.now() - Job.objects.earliest("pk").enqueued_at) / 2
    client = Client()
    client.force_login(boss)
    worker_id = Worker.objects.latest("pk").pk
    failed = Job.objects.failed().filter(task="shop.jobs.send_receipt").latest("finished_at")
    bulk = Job.objects.running().filter(task=BULK_TASK)
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM skipqueue_archivedjob ORDER BY finished_at DESC LIMIT 1")
        ((archived_id,),) = cursor.fetchall()
    values = {
        "first": "5",
        "hour": urlencode({"first": middle.isoformat(), "before": (middle + timedelta(hours=1)).isoformat()}),
        "last": str(Job.objects.queued().latest("pk").kwargs["payment_id"]),
        "failed": str(failed.pk),
        "queued": str(Job.objects.queued().latest("pk").pk),
        "blocked": str(Job.objects.blocked().filter(limit_kind="concurrency").latest("pk").pk),
        "batch": str(JobBatch.objects.latest("pk").pk),
        "schedule": str(Schedule.objects.latest("pk").pk),
        "worker": quote(worker_id),
        "worker_query": urlencode({"worker": worker_id}),
        "action": str(bulk.get(kwargs__action="retry_selected").pk),
        "search": str(bulk.get(kwargs__action="search").pk),
        "archived": str(archived_id),
        "cause": cause_query(Cause("shop.jobs.send_receipt", "smtplib.SMTPDataError", "shop.mail.deliver_6")),
    }

    def page(address: str, action: str = "") -> None:
        for name, value in values.items():
            address = address.replace(f"%({name})s", value)
        address = address if address.startswith("/") else ADMIN + address
        posted = {"action": action, "select_across": "1", "_selected_action": "all"}
        response = client.post(address, posted) if action else client.get(address)
        if response.status_code not in (200, 503):  # 503: the statement timeout has ended a query
            raise RuntimeError(f"{address}: {response.status_code}")

    for address in ("job/", "archivedjob/"):
        page(address)  # compiles the templates
    calls = {name: partial(page, address) for name, address in PAGES.items()}
    calls |= {name: partial(page, *question) for name, question in QUESTIONS.items()}
    slow = sum([measure_and_print(name, repeat, call) for name, call in calls.items()])
    for command in COMMANDS:
        measure_and_print(f"`{command}`", repeat, partial(run, command), processor=False)
    print(f"\n{len(calls)} pages, {slow} of which take more than {SLOW} ms of Python.")


def fill(jobs: int, archived: int, user_id: int) -> None:
    """Insert jobs with and without limits, batches, schedules, the archive, the roll-ups and two workers."""
    from django.db import connection
    from django.test import override_settings

    from django_skipqueue.models.copies import BULK_TASK
    from django_skipqueue.queue.store import Store
    from django_skipqueue.values.part import installed_parts

    with connection.cursor() as cursor:
        for statement in (FILL, FILL_BATCHES, FILL_BLOCKED, FILL_SCHEDULES):
            cursor.execute(statement, {"jobs": jobs})
        cursor.execute(FILL_LOG, {"entries": jobs // 5, "user_id": user_id})
        with override_settings(SKIPQUEUE={"ARCHIVE": None}):
            for part in installed_parts():
                if part.before_prune:
                    part.before_prune(Store("default"))()
        cursor.execute(FILL_ARCHIVE, {"archived": archived})
        cursor.execute(FILL_ROLLUPS, {})
        cursor.execute(FILL_FAILURES, {})
        cursor.execute(FILL_ACTIONS, {"task": BULK_TASK})
        cursor.execute(
            "INSERT INTO skipqueue_worker (id, name, hostname, pid, queues, concurrency) "
            "SELECT 'web-' || n || ':00000000000' || n, 'web-' || n, 'web', n, '[]', 4 FROM generate_series(1, 2) AS n"
        )
        cursor.execute("VACUUM ANALYZE")


def run(command: str) -> None:
    """Run a command of `manage.py`, and discard its output."""
    from django.core.management import call_command

    nothing = io.StringIO()
    with contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing), contextlib.suppress(SystemExit):
        call_command(*command.split())


class ProcessorTime(NamedTuple):
    """Processor time in milliseconds: of this process, and of the PostgreSQL process of its connection."""

    python: float
    postgresql: float


SLOW = 200
"""A page for which Python takes more milliseconds counts as slow."""


def measure_and_print(name: str, repeat: int, call: Callable[[], object], *, processor: bool = True) -> bool:
    """Call the page or command several times, and print medians of its processor times and of its time by the clock.

    Returns whether Python takes too long. The PostgreSQL time of a command is not known: it has its own connection.
    """
    times, processor_times = [], []
    for _ in range(repeat):
        started, before = time.perf_counter(), processor_time_so_far()
        call()
        after = processor_time_so_far()
        times.append((time.perf_counter() - started) * 1000)
        processor_times.append(ProcessorTime(after.python - before.python, after.postgresql - before.postgresql))
    python = statistics.median(spent.python for spent in processor_times)
    postgresql = f"{statistics.median(spent.postgresql for spent in processor_times):.0f} ms" if processor else ""
    median = statistics.median(times)
    print(f"| {name} | {python:.0f} ms | {postgresql} | {median:.0f} ms | {max(times):.0f} ms |", flush=True)
    return python > SLOW


def processor_time_so_far() -> ProcessorTime:
    """The processor time that this process and the PostgreSQL process of its connection have used so far."""
    from django.db import connection

    connection.ensure_connection()
    schedule = Path(f"/proc/{connection.connection.info.backend_pid}/schedstat")
    server = int(schedule.read_text().split()[0]) / 1e6 if schedule.exists() else 0.0
    return ProcessorTime(time.process_time() * 1e3, server)


if __name__ == "__main__":
    main()
