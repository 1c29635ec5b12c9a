"""`python -m benchmarks.measure ROW SIZES`: one measurement, printed as JSON. Run by `measurement`, never by hand.

Invariant: each measurement has a process and a database of its own.
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
    """Measure the row once."""
    with fresh_database() as environment:
        environment |= {"DJANGO_SETTINGS_MODULE": "benchmarks.settings"}
        migrate = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
        subprocess.run(migrate, env=environment, check=True)
        command = [sys.executable, "-m", "benchmarks.measure", row, json.dumps(dataclasses.asdict(sizes))]
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def main() -> None:
    """The child's side."""
    import django

    django.setup()
    from .rows import ROWS

    gc.freeze()  # a full collection of the modules would hit one measurement, and not another
    row, sizes = sys.argv[1:]
    print(json.dumps(ROWS[row](Sizes(**json.loads(sizes)))))


if __name__ == "__main__":
    main()
