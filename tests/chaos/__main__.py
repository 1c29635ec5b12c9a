"""`python -m tests.chaos [SCENARIO …]`: run scenarios, judge them, and print the table of figures."""

import argparse
import logging
import os
import platform
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .cluster import Cluster

if TYPE_CHECKING:
    from .report import Verdict

SECONDS = 8.0
RATE = 330.0


def main() -> int:
    """Run the scenarios that the command line names. Returns 0 if no invariant was violated."""
    options = _options()
    results_folder = Path(tempfile.mkdtemp(prefix="skipqueue-chaos-"))
    cluster = Cluster(results_folder / "postgres")
    (results_folder / "postgres").mkdir()
    cluster.create()
    os.environ |= {"DJANGO_SETTINGS_MODULE": "tests.chaos.settings", "DATABASE_URL": cluster.url}
    try:
        failed = _run_all(options, cluster, results_folder)
    finally:
        cluster.stop()
    if failed or options.keep:
        print(f"\nLogs and data are in {results_folder}")
    else:
        shutil.rmtree(results_folder)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="default: all of them")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="to do the same again")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="of faults in each scenario (default: %(default)s)"
    )
    parser.add_argument("--rate", type=float, default=RATE, help="jobs deferred a second (default: %(default)s)")
    parser.add_argument(
        "--others", type=int, default=0, metavar="N", help="run N more scenarios, which the seed chooses"
    )
    parser.add_argument("--markdown", type=Path, help="put the table into this page as well, if nothing failed")
    parser.add_argument("--keep", action="store_true", help="keep logs and data even if nothing failed")
    return parser.parse_args()


def _run_all(options: argparse.Namespace, cluster: Cluster, results_folder: Path) -> bool:
    """Run the scenarios one after the other. Returns whether any has failed."""
    import django

    django.setup()
    from .report import HEAD, write
    from .scenarios import SCENARIOS

    unknown = [name for name in options.scenarios if name not in SCENARIOS]
    if unknown:
        sys.exit(f"There is no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}.")
    _prepare(cluster)
    print(f"Seed {options.seed}; Python {platform.python_version()}, Django {django.__version__}\n\n{HEAD}", flush=True)
    names = chosen(options.scenarios, list(SCENARIOS), seed=options.seed, others=options.others)
    rows = [_run(name, options, cluster, results_folder / name) for name in names if _can_run(name)]
    if options.markdown and all(rows):
        # mypy does not infer from `all(rows)` that no row is None, so `filter` removes `None`.
        write([HEAD, *filter(None, rows)], options.markdown)
    return not all(rows)


def chosen(named: Sequence[str], known: Sequence[str], *, seed: int, others: int) -> list[str]:
    """The scenarios to run: the named ones, and `others` more, which the seed chooses. Without either: all."""
    if not (named or others):
        return list(known)
    remaining_names = [name for name in known if name not in named]
    return [*named, *random.Random(seed).sample(remaining_names, min(others, len(remaining_names)))]


def _can_run(name: str) -> bool:
    from .scenarios import SCENARIOS

    needs = SCENARIOS[name].needs
    if needs:
        print(f"{name} is left out: it needs {needs}.", file=sys.stderr)
    return not needs


def _prepare(cluster: Cluster) -> None:
    """Create the tables of the queue, and the tables of the witness, which record what happens."""
    from django.core.management import call_command

    from .clocks import FOLDER
    from .witness import REAL_TIME, TABLES, booted

    logging.getLogger("django_skipqueue").setLevel(logging.CRITICAL)  # the load would log each lost connection
    call_command("migrate", verbosity=0)
    with cluster.connect() as connection:
        connection.execute(TABLES)
        if FOLDER is not None:
            connection.execute(REAL_TIME.format(booted=booted()))


def _run(name: str, options: argparse.Namespace, cluster: Cluster, folder: Path) -> str | None:
    """Run one scenario. Returns its row in the table of figures, or `None` if it failed."""
    try:
        verdict = _verdict(name, options, cluster, folder)
    except Exception:
        traceback.print_exc()
        _print_violations(name, ["it broke off"], options)
        return None
    print(verdict.row, flush=True)
    if verdict.violations:
        _print_violations(name, verdict.violations, options)
        return None
    return verdict.row


def _verdict(name: str, options: argparse.Namespace, cluster: Cluster, folder: Path) -> "Verdict":
    from .one_of_three import RunOfThree
    from .report import judge
    from .report_of_carrier import judge_carried
    from .run_with_carrier import RunWithCarrier
    from .scenarios import SCENARIOS, Run

    scenario = SCENARIOS[name]
    values = {"seed": options.seed, "seconds": options.seconds, "rate": options.rate}
    if scenario.has_three:
        run = RunOfThree(name, folder, **values)
        return run.verdict()
    if scenario.has_carrier:
        return judge_carried(name, RunWithCarrier(name, cluster, folder, **values).evidence())
    return judge(name, Run(name, cluster, folder, **values).evidence())


def _print_violations(name: str, violations: list[str], options: argparse.Namespace) -> None:
    print(f"\n{name}: {len(violations)} violations", file=sys.stderr)
    for violation in violations[:30]:
        print(f"  {violation}", file=sys.stderr)
    options_of_run = f"--seed {options.seed} --seconds {options.seconds:g} --rate {options.rate:g}"
    print(f"To run it again: python -m tests.chaos {name} {options_of_run}\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
