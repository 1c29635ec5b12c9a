"""`python -m benchmarks.admin_list [--jobs N]`: how long the admin's job list takes to open.

Jobs of all statuses, in four queues, of five tasks, in a database of its own on the server of DATABASE_URL. The time is
that of the whole request, in-process, by Django's test client: middleware, session, every query, the template.
"""

import argparse
import statistics
import time

import django
import environ
from django.conf import settings

from .databases import about_server, fresh_database

LIST = "/admin/django_skipqueue/job/"

PAGES = {
    "all jobs": "",
    "all jobs, last page": "?p=200",
    "status completed": "?status=completed",
    "status queued": "?status=queued",
    "status failed": "?status=failed",
    "status scheduled": "?status=scheduled",
    "failed in one queue": "?status=failed&queue=mail",
    "one queue": "?queue=mail",
    "one task": "?task=shop.jobs.refund",
    "a task without jobs": "?task=nothing",
    "queued of a task without jobs": "?status=queued&task=nothing",
    "last hour": "?time=hour",
    "failed in the last hour": "?status=failed&time=hour",
    "search: an id": "?q=4711",
    "search: a part of a task's name": "?q=receipt",
    "search: an argument that is there": "?q=payment_id=%(last)s",
    "search: an argument that is not": "?q=payment_id=-1",
}

FILL = """
INSERT INTO skipqueue_job (
    queue_name, task, args, kwargs, status, attempts, run_after, enqueued_at, locked_at, locked_by, started_at,
    finished_at, last_error, errors
)
SELECT
    (ARRAY['default', 'mail', 'reports', 'imports'])[1 + n %% 4],
    'shop.jobs.' || (ARRAY['send_receipt', 'refund', 'build_report', 'sync_stock', 'welcome'])[1 + n %% 5],
    '[]', jsonb_build_object('payment_id', n, 'email', 'customer' || n || '@example.com'), status,
    CASE WHEN status IN ('scheduled', 'queued') THEN 0 ELSE 1 END,
    moment, enqueued, CASE WHEN status = 'running' THEN moment END, '', moment,
    CASE WHEN status IN ('completed', 'failed', 'discarded') THEN moment END,
    CASE WHEN status = 'failed' THEN 'SMTPDataError: 451 try again later' ELSE '' END,
    CASE WHEN status = 'failed' THEN '[{"attempt": 1, "message": "451", "traceback": "…"}]'::jsonb ELSE '[]' END
FROM
    generate_series(1, %(jobs)s) AS n,
    LATERAL (
        SELECT CASE
            WHEN n %% 100 < 60 THEN 'completed' WHEN n %% 100 < 75 THEN 'queued' WHEN n %% 100 < 85 THEN 'failed'
            WHEN n %% 100 < 92 THEN 'scheduled' WHEN n %% 1000 = 999 THEN 'running' ELSE 'discarded'
        END AS status
    ) AS life,
    LATERAL (SELECT now() - (%(jobs)s - n) * interval '0.7 second' AS enqueued) AS past,
    LATERAL (SELECT enqueued + CASE WHEN status = 'scheduled' THEN interval '30 days' ELSE '0' END AS moment) AS clock
"""


def main() -> None:
    """Fill a database, open each page, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admin_list", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="rows in the table (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=7, help="times that each page is opened (default: %(default)s)")
    options = parser.parse_args()
    with fresh_database() as environment:
        configure(environment["DATABASE_URL"])
        print(f"Django {django.__version__}, {about_server()}\n")
        print(f"| page, at {options.jobs:,} jobs | median | slowest |\n|---|---|---|")
        try:
            measure(options.jobs, options.repeat)
        finally:
            from django.db import connections

            connections.close_all()


def configure(url: str) -> None:
    """A project that has only what the admin needs."""
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
    )
    django.setup()


def measure(jobs: int, repeat: int) -> None:
    """Print a line for each page."""
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db import connection
    from django.test import Client

    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute(FILL, {"jobs": jobs})
        cursor.execute("VACUUM ANALYZE skipqueue_job")
    client = Client()
    client.force_login(User.objects.create_superuser("admin"))
    client.get(LIST)  # compiles the templates
    for name, address in PAGES.items():
        times = []
        for _ in range(repeat):
            started = time.perf_counter()
            response = client.get(LIST + address.replace("%(last)s", str(jobs)))
            times.append((time.perf_counter() - started) * 1000)
            if response.status_code != 200:
                raise RuntimeError(f"{address}: {response.status_code}")
        print(f"| {name} | {statistics.median(times):.0f} ms | {max(times):.0f} ms |", flush=True)


if __name__ == "__main__":
    main()
