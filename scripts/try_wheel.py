"""Use the installed package as a new project does: migrate, defer a job, run a worker, read and show the result.

Run it with the Python of an environment into which only the wheel was installed, and with DATABASE_URL set.
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
    """Do it all, or stop at the first thing that does not work."""
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
    shown = StringIO()
    call_command("skipqueue", "show", str(deferred.pk), stdout=shown)
    assert "completed" in shown.getvalue(), f"the job is shown as {shown.getvalue()}"
    print(f"django-skipqueue {django_skipqueue.__version__} works from its wheel on Django {django.__version__}.")


def configure() -> None:
    """The least that a project with an admin has."""
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
