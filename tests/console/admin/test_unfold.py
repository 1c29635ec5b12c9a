"""Run the tests of `unfold_pages`, with django-unfold installed, in a process with other settings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow  # the test opens every page in a browser once more
@pytest.mark.browser
@pytest.mark.timeout(300)  # for all tests of the subprocess together
def test_the_pages_work_with_unfold() -> None:
    command = [sys.executable, "-m", "pytest", "--ds=tests.unfold_settings", "tests/console/admin/unfold_pages.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    process = subprocess.run(
        [*command, "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout
