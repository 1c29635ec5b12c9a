"""The pages with django-unfold: `unfold_pages`, in a process with settings of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow  # it opens every page in a browser once more
@pytest.mark.browser
@pytest.mark.timeout(300)  # for all tests of the subprocess together
def test_the_pages_work_with_unfold() -> None:
    tests = [sys.executable, "-m", "pytest", "--ds=tests.unfold_settings", "tests/console/admin/unfold_pages.py"]
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*tests, "-q", "-p", "no:cacheprovider"], cwd=ROOT, env=others, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
