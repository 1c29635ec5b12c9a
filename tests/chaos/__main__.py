"""`python -m tests.chaos [SCENARIO …]`: run scenarios, judge them, and print the table of figures."""

import argparse
import os
import platform
import random
import shutil
import sys
import tempfile
from pathlib import Path

from .cluster import Cluster

SECONDS = 20.0
RATE = 60.0


def main() -> int:
    """Run what the command line names; 0 if no invariant was violated."""
    options = _options()
    home = Path(tempfile.mkdtemp(prefix="skipqueue-chaos-"))
    cluster = Cluster(home / "postgres")
    (home / "postgres").mkdir()
    cluster.create()
    os.environ |= {"DJANGO_SETTINGS_MODULE": "tests.chaos.settings", "DATABASE_URL": cluster.url}
    try:
        failed = _run_all(options, cluster, home)
    finally:
        cluster.stop()
    if failed:
        print(f"\nLogs and data are in {home}")
    else:
        shutil.rmtree(home)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="default: all of them")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="to do the same again")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="of faults in each scenario (default: %(default)s)"
    )
    parser.add_argument("--rate", type=float, default=RATE, help="jobs deferred a second (default: %(default)s)")
    parser.add_argument("--markdown", type=Path, help="write the table into this file as well")
    return parser.parse_args()


def _run_all(options: argparse.Namespace, cluster: Cluster, home: Path) -> bool:
    """One scenario after the other; whether any failed."""
    import django

    django.setup()
    from django.core.management import call_command

    from .report import HEAD, judge
    from .scenarios import SCENARIOS, Run
    from .witness import TABLES

    unknown = [name for name in options.scenarios if name not in SCENARIOS]
    if unknown:
        sys.exit(f"There is no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}.")
    call_command("migrate", verbosity=0)
    with cluster.connect() as connection:
        connection.execute(TABLES)
    head = f"Seed {options.seed}; Python {platform.python_version()}, Django {django.__version__}"
    print(f"{head}\n\n{HEAD}", flush=True)
    rows, failed = [], False
    for name in options.scenarios or SCENARIOS:
        run = Run(name, cluster, home / name, seed=options.seed, seconds=options.seconds, rate=options.rate)
        verdict = judge(run.scenario.title, run.evidence())
        rows.append(verdict.row)
        print(verdict.row, flush=True)
        if verdict.violations:
            failed = True
            _complain(name, verdict.violations, options)
    if options.markdown:
        options.markdown.write_text("\n".join([head, "", HEAD, *rows]) + "\n")
    return failed


def _complain(name: str, violations: list[str], options: argparse.Namespace) -> None:
    print(f"\n{name}: {len(violations)} violations", file=sys.stderr)
    for violation in violations[:30]:
        print(f"  {violation}", file=sys.stderr)
    again = f"--seed {options.seed} --seconds {options.seconds:g} --rate {options.rate:g}"
    print(f"To run it again: python -m tests.chaos {name} {again}\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
