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
"""The backport is published without tests. It is tested with the tests of the first Django that has the framework."""


class Unreachable(Exception):
    """The package index did not answer."""


def folder() -> Path:
    """Return the folder of Django's test package `tasks`, for `sys.path`. Download it first if it is not cached."""
    cache_folder = cache() / REQUIREMENT.replace("==", "-").replace("~=", "-")
    cache_folder.mkdir(parents=True, exist_ok=True)
    with (cache_folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # only one of several test processes fetches
        if not (cache_folder / "tests").exists():
            _fetch(cache_folder)
    return cache_folder / "tests"


def cache() -> Path:
    """Return the cache folder for Django's tests, which is outside of the repository."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if not os.access(base if base.exists() else base.parent, os.W_OK):
        base = Path(tempfile.gettempdir())
    return base / "skipqueue-django-tests"


def _fetch(cache_folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--no-binary", ":all:", "--ignore-requires-python", REQUIREMENT]
    with tempfile.TemporaryDirectory(dir=cache_folder) as scratch:
        process = subprocess.run([*command, "--dest", scratch], capture_output=True, text=True, timeout=300)
        archives = list(Path(scratch).glob("*.tar.gz"))
        if process.returncode or not archives:
            reason = (process.stderr.strip() or "pip downloaded no source distribution").splitlines()[-1]
            raise Unreachable(f"pip download {REQUIREMENT}: {reason}")
        with tarfile.open(archives[0]) as archive:
            members = [member for member in archive if "/tests/tasks/" in member.name]
            archive.extractall(scratch, members, filter="data")
        (archives[0].with_name(archives[0].name.removesuffix(".tar.gz")) / "tests").rename(cache_folder / "tests")
