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
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SKIPQUEUE_")}
    process = subprocess.run(
        [sys.executable, SCRIPT],
        env=environment,
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=280,
        check=False,
    )
    assert process.returncode == 0, process.stdout
    assert "The tutorial's" in process.stdout
