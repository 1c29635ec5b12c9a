"""A script follows the steps of the tutorial on the installed Django. `.ci/run` does it on all three versions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "try_tutorial.py"


@pytest.mark.slow  # `.ci/run` follows the tutorial on three versions of Django
@pytest.mark.timeout(300)
def test_the_steps_of_the_tutorial_work(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SKIPQUEUE_")}
    done = subprocess.run(
        [sys.executable, SCRIPT],
        env=clean,
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "The tutorial's" in done.stdout
