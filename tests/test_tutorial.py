"""The tutorial, followed by its own text on the Django that is installed; `.ci/run` does it on all three."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connections

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "try_tutorial.py"


@pytest.mark.timeout(300)
def test_the_tutorial_does_what_it_says(django_db_setup: None, tmp_path: Path) -> None:
    settings = connections["default"].settings_dict
    parts = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD", "dbname": "NAME"}
    address = {part: settings[name] for part, name in parts.items() if settings[name]}
    url = " ".join(f"{name}={value}" for name, value in address.items())
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SKIPQUEUE_")}
    done = subprocess.run(
        [sys.executable, SCRIPT],
        env={**clean, "DATABASE_URL": url},
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "The tutorial's" in done.stdout
