"""`python -m benchmarks.measure ROW SIZES`: make one measurement and print it as JSON. Only `measurement` runs it.

Invariant: each measurement has its own process and its own database.
"""

import dataclasses
import gc
import json
import subprocess
import sys

from .databases import fresh_database
from .figures import Figures
from .sizes import Sizes


def measurement(row: str, sizes: Sizes) -> Figures:
    """Measure the row once, in a new process with a new database."""
    with fresh_database() as environment:
        environment |= {"DJANGO_SETTINGS_MODULE": "benchmarks.settings"}
        migrate = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
        subprocess.run(migrate, env=environment, check=True)
        command = [sys.executable, "-m", "benchmarks.measure", row, json.dumps(dataclasses.asdict(sizes))]
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def main() -> None:
    """Measure the row in this process, which `measurement` has started."""
    import django

    django.setup()
    from .rows import ROWS

    gc.freeze()  # otherwise a full garbage collection would slow some measurements down and not others
    row, sizes = sys.argv[1:]
    print(json.dumps(ROWS[row](Sizes(**json.loads(sizes)))))


if __name__ == "__main__":
    main()
