"""`python -m benchmarks.measure ROW JOBS`: one measurement, printed as JSON. Run by `python -m benchmarks`."""

import json
import sys

import django

if __name__ == "__main__":
    django.setup()
    from .rows import ROWS

    row, jobs = sys.argv[1:]
    print(json.dumps(ROWS[row](int(jobs))))
