"""A description of the machine: cores, versions, and the settings of the server that decide what a commit costs."""

import os
import platform

import django

from .databases import about_server


def machine() -> str:
    """The description in one line, which is printed above a table."""
    versions = f"Python {platform.python_version()}, Django {django.__version__}, {about_server()}"
    return f"{cores()} cores for PostgreSQL, client and worker; {versions}"


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
