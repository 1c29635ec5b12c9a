"""`python -m benchmarks [ROW …]`: measure rows of the table, and print them as Markdown and, if asked, as JSON."""

import argparse
import dataclasses
import json
import os
from pathlib import Path

import django

from .figures import markdown_head, markdown_row, median_of, phrase
from .machine import machine
from .measure import measurement
from .sizes import Sizes


def main() -> None:
    """Measure the rows that the command line names."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # so that compiled modules are cached, as for an installed package
    django.setup()
    from .rows import ROWS

    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"one of {', '.join(ROWS)}; default: all")
    parser.add_argument("--repeat", type=int, default=3, help="measurements of each row (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures into this file as well")
    Sizes.add_options(parser)
    options = parser.parse_args()
    unknown = [row for row in options.rows if row not in ROWS]
    if unknown:
        parser.error(f"there is no row {', '.join(unknown)}")
    sizes = Sizes.from_options(options)
    head = machine()
    print(f"{head}\n\n{markdown_head(['row', 'what it is', f'median of {options.repeat}'])}", flush=True)
    table = {}
    for row in options.rows or ROWS:
        table[row] = median_of([measurement(row, sizes) for _ in range(options.repeat)])
        description = (ROWS[row].__doc__ or "").splitlines()[0].rstrip(".")
        print(markdown_row([f"`{row}`", description, phrase(table[row])]), flush=True)
    if options.json:
        written = {"machine": head, "repeat": options.repeat, "sizes": dataclasses.asdict(sizes), "rows": table}
        options.json.write_text(json.dumps(written, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
