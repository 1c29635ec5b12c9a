"""Follow one job: print each function of the package that it passes, from `.defer()` to its outcome in the database.

A function of the worker counts if it runs in a drain of one job, and not in a drain of none. Run it in the checkout,
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
    """Print the functions in the order of their first calls, and their number."""
    configure()
    if options[:1] == (DRAIN,):
        drain(Path(options[1]))
        return
    call_command("migrate", verbosity=0)
    task = tasks()[int("--limit" in options)]
    task.defer("")  # what only a first call does is not shown
    functions_of_a_drain()
    idle = functions_of_a_drain()
    passed: list[str] = []
    with_profile(passed, lambda: task.defer(""))
    passed += [function for function in dict.fromkeys(functions_of_a_drain()) if function not in {*idle, *passed}]
    modules: dict[str, list[str]] = {}
    for function in passed:
        module, _, name = function.partition(":")
        modules.setdefault(module, []).append(name)
    for module, names in modules.items():
        print(module)
        print(*(f"    {name}" for name in names), sep="\n")
    print(f"{len(passed)} functions in {len(modules)} modules")


def configure() -> None:
    """The settings of a project that has nothing but the queue."""
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
    """A plain task, and one with a limit: of a function that a worker can import."""
    from django_skipqueue import job, limit

    return job(dedent), job(name="limited", concurrency=limit(2, by="text"))(dedent)


def functions_of_a_drain() -> list[str]:
    """Those that a worker calls that runs what is queued, and ends."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, __file__, DRAIN, folder], check=True)
        return [line for file in sorted(Path(folder).iterdir()) for line in file.read_text().splitlines()]


def drain(folder: Path) -> None:
    """Run a worker, each of whose forked processes writes the functions that it has called into a file."""
    passed: list[str] = []
    leave = os._exit

    def write_and_leave(code: int) -> None:
        sys.setprofile(None)
        (folder / str(os.getpid())).write_text("\n".join(passed))
        leave(code)

    def follow() -> None:
        os._exit = write_and_leave  # type: ignore[assignment]
        threading.setprofile(noting(passed))
        sys.setprofile(noting(passed))

    os.register_at_fork(after_in_child=follow)
    call_command("runworker", drain=True, verbosity=0)


def with_profile(passed: list[str], call: Callable[[], object]) -> None:
    """Note the functions that the call passes."""
    sys.setprofile(noting(passed))
    try:
        call()
    finally:
        sys.setprofile(None)


def noting(passed: list[str]) -> Callable[[FrameType, str, object], None]:
    """A profile function that adds each function of the package once."""
    seen = set(passed)

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name[0] != "<":
            module = code.co_filename.removeprefix(PACKAGE).removesuffix(".py").replace(os.sep, ".")
            name = f"{module}:{getattr(code, 'co_qualname', code.co_name)}"
            if name not in seen:
                seen.add(name)
                passed.append(name)

    return note


if __name__ == "__main__":
    main(*sys.argv[1:])
