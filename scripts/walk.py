"""Prints which of the package's functions run for one job, from `.defer()` until its outcome is in the database.

To find the worker's functions, it starts a worker that drains an empty queue, and a worker that drains a queue with one
job. It prints the functions that only the second worker called. Run it in the checkout,
with DATABASE_URL set: `make walk`, or `make walk ARGS=--limit` for a job that has a concurrency limit.
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import FrameType
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from psycopg.conninfo import conninfo_to_dict

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
PACKAGE = str(ROOT / "django_skipqueue") + os.sep
DRAIN = "--drain-into"


def main(*options: str) -> None:
    """Print the functions in the order of their first calls, and how many they are."""
    configure()
    if options[:1] == (DRAIN,):
        drain(Path(options[1]))
        return
    call_command("migrate", verbosity=0)
    task = tasks()[int("--limit" in options)]
    task.defer("")  # a first call, so that functions which only it calls are not printed
    functions_of_a_drain()
    idle_functions = functions_of_a_drain()
    called: list[str] = []
    with_profile(called, lambda: task.defer(""))
    other_functions = {*idle_functions, *called}
    called += [function for function in dict.fromkeys(functions_of_a_drain()) if function not in other_functions]
    modules: dict[str, list[str]] = {}
    for function in called:
        module, _, name = function.partition(":")
        modules.setdefault(module, []).append(name)
    for module, names in modules.items():
        print(module)
        print(*(f"    {name}" for name in names), sep="\n")
    print(f"{len(called)} functions in {len(modules)} modules")


def configure() -> None:
    """Configure Django for a project that has only the queue."""
    given = conninfo_to_dict(os.environ["DATABASE_URL"])
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": given.pop("dbname"), "OPTIONS": given}
    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_skipqueue"],
        DATABASES={"default": database},
        LOGGING_CONFIG=None,
        USE_TZ=True,
    )
    django.setup()
    tasks()


def tasks() -> tuple[Any, Any]:
    """A plain task, and one with a limit. Both wrap a function of the standard library, which a worker can import."""
    from django_skipqueue import job, limit

    return job(dedent), job(name="limited", concurrency=limit(2, by="text"))(dedent)


def functions_of_a_drain() -> list[str]:
    """Run a worker until the queue is empty. Returns the functions that the worker called."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, __file__, DRAIN, folder], check=True)
        return [line for file in sorted(Path(folder).iterdir()) for line in file.read_text().splitlines()]


def drain(folder: Path) -> None:
    """Run a worker. Each of its forked processes writes the functions that it called to a file in the folder."""
    called: list[str] = []
    original_exit = os._exit

    def write_and_exit(code: int) -> None:
        sys.setprofile(None)
        (folder / str(os.getpid())).write_text("\n".join(called))
        original_exit(code)

    def start_recording() -> None:
        os._exit = write_and_exit  # type: ignore[assignment]
        threading.setprofile(recorder(called))
        sys.setprofile(recorder(called))

    os.register_at_fork(after_in_child=start_recording)
    call_command("runworker", drain=True, verbosity=0)


def with_profile(called: list[str], call: Callable[[], object]) -> None:
    """Add the functions that run during this call to the list."""
    sys.setprofile(recorder(called))
    try:
        call()
    finally:
        sys.setprofile(None)


def recorder(called: list[str]) -> Callable[[FrameType, str, object], None]:
    """Make a profile function for Python that adds each function of the package to the list once."""
    seen = set(called)

    def record(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name[0] != "<":
            module = code.co_filename.removeprefix(PACKAGE).removesuffix(".py").replace(os.sep, ".")
            name = f"{module}:{getattr(code, 'co_qualname', code.co_name)}"
            if name not in seen:
                seen.add(name)
                called.append(name)

    return record


if __name__ == "__main__":
    main(*sys.argv[1:])
