"""What a reader needs to judge figures: cores, versions, and the server's settings that decide what a commit costs."""

import os
import platform

import django

from .databases import about_server


def machine() -> str:
    """One line, for the head of a table."""
    versions = f"Python {platform.python_version()}, Django {django.__version__}, {about_server()}"
    return f"{cores()} cores for PostgreSQL, client and worker; {versions}"


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
