"""The settings of the example project, as in production, and with the tasks of the benchmarks."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "example_project"))

from shop.settings import *  # noqa: F403

DEBUG = False
INSTALLED_APPS += ["benchmarks"]  # noqa: F405
