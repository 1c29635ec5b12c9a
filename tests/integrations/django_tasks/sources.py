"""Django's own tests of its task framework, from Django's source distribution: fetched when a test first needs them.

They are not in this repository. The user's cache keeps them, in one folder for each version of Django.
"""

import fcntl
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import django

REQUIRED = "SKIPQUEUE_REQUIRE_DJANGO_TESTS"
"""The environment variable that is 1 if the tests must not be skipped."""

REQUIREMENT = f"django=={django.get_version()}" if django.VERSION >= (6, 0) else "django~=6.0.0"
"""The backport is published without tests. It gets the tests of the first Django that has the framework."""


class Unreachable(Exception):
    """The package index did not answer."""


def folder() -> Path:
    """The folder that holds Django's package `tasks`, ready to be put on the path. Raises `Unreachable`."""
    home = cache() / REQUIREMENT.replace("==", "-").replace("~=", "-")
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # only one of several test processes fetches
        if not (home / "tests").exists():
            _fetch(home)
    return home / "tests"


def cache() -> Path:
    """The cache folder for Django's tests, outside of the repository."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if not os.access(base if base.exists() else base.parent, os.W_OK):
        base = Path(tempfile.gettempdir())
    return base / "skipqueue-django-tests"


def _fetch(home: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--no-binary", ":all:", "--ignore-requires-python", REQUIREMENT]
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        done = subprocess.run([*command, "--dest", scratch], capture_output=True, text=True, timeout=300)
        found = list(Path(scratch).glob("*.tar.gz"))
        if done.returncode or not found:
            reason = (done.stderr.strip() or "it brought no source distribution").splitlines()[-1]
            raise Unreachable(f"pip download {REQUIREMENT}: {reason}")
        with tarfile.open(found[0]) as archive:
            members = [member for member in archive if "/tests/tasks/" in member.name]
            archive.extractall(scratch, members, filter="data")
        (found[0].with_name(found[0].name.removesuffix(".tar.gz")) / "tests").rename(home / "tests")
