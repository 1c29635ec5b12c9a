"""Tries the installed wheel as a new project would: migrates, defers a job, runs a worker, and shows the result.

Run it with DATABASE_URL set, and with the Python of an environment that has only the wheel installed.
"""

import os
import textwrap
from io import StringIO
from pathlib import Path

import django
from django.conf import settings
from django.core.management import call_command
from psycopg.conninfo import conninfo_to_dict

import django_skipqueue

CHECKOUT = Path(__file__).resolve().parent.parent
FILES = ["py.typed", "console/admin", "migrations", "static", "templates", "management/commands/runworker.py"]


def main() -> None:
    """Try each step, and stop at the first one that fails."""
    package = Path(django_skipqueue.__file__).parent
    assert not package.is_relative_to(CHECKOUT), f"{package} is the checkout, not the wheel"
    missing = [name for name in FILES if not (package / name).exists()]
    assert not missing, f"the wheel lacks {missing}"

    configure()
    call_command("check", fail_level="WARNING")
    call_command("migrate", verbosity=0)
    deferred = django_skipqueue.job(textwrap.dedent).defer("  text")  # a function that can be imported
    call_command("runworker", drain=True)
    deferred.refresh_from_db()
    assert deferred.result == "text", f"the job is {deferred.status}: {deferred.last_error}"
    output = StringIO()
    call_command("skipqueue", "show", str(deferred.pk), stdout=output)
    assert "completed" in output.getvalue(), f"the job is shown as {output.getvalue()}"
    print(f"django-skipqueue {django_skipqueue.__version__} works from its wheel on Django {django.__version__}.")


def configure() -> None:
    """Configure Django with the fewest settings that a project with an admin needs."""
    database = conninfo_to_dict(os.environ["DATABASE_URL"])
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": database["dbname"],
                "USER": database["user"],
                "HOST": database["host"],
                "PORT": database["port"],
            }
        },
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
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        SECRET_KEY="only-for-this-script",
        USE_TZ=True,
    )
    django.setup()


if __name__ == "__main__":
    main()
