"""`python -m tests.guards [TEXT …]`: take each guard out of a copy of the tree, and see that its tests go red."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from .guard import ROOT, Guard, all_guards

PYTEST = (sys.executable, "-m", "pytest", "-x", "-q")
PLUGINS = ("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "tests.guards.impatient")

LONGEST_TEST_SECONDS = 60
"""pytest ends a test that takes longer. A test that hangs counts as failed."""

LOCK_TIMEOUT = "-c lock_timeout=15s"
"""An option of the tests' database sessions: a statement that waits longer than this for a lock fails."""


def main() -> int:
    """Try the guards whose names contain one of the texts. Returns 0 if the tests of each guard fail without it."""
    parser = argparse.ArgumentParser(prog="python -m tests.guards", description=__doc__)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="of the names of the guards; default: all guards")
    parser.add_argument("--jobs", type=int, default=2, help="guards at a time (default: %(default)s)")
    options = parser.parse_args()
    guards = [guard for guard in all_guards() if any(text in guard.name for text in options.texts or [""])]
    if not guards:
        parser.error("no guard has such a name")
    with tempfile.TemporaryDirectory(prefix="skipqueue-guards-") as folder_of_copies:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.jobs):
            copies.put(copy_tree(Path(folder_of_copies) / str(number)))
        if failure_output := run_with_all_guards(Path(folder_of_copies) / "0", guards, options.jobs):
            print_at_once(f"The tests are not green with all guards in place:\n{failure_output}")
            return 1
        with ThreadPoolExecutor(options.jobs) as pool:
            results = list(pool.map(lambda guard: all_tests_fail_without(guard, copies), guards))
    print_at_once(f"\n{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


def copy_tree(folder: Path) -> Path:
    """Copy the files of the working tree that git knows, or would add."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():  # not deleted since the last commit
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def run_with_all_guards(copy: Path, guards: Iterable[Guard], jobs: int) -> str:
    """Run all tests that the guards name. Return the output of pytest if a test fails, otherwise an empty string."""
    tests = sorted({test for guard in guards for test in guard.failing_tests})
    began_at = time.monotonic()
    exit_code, output = run_pytest(copy, f"-n{jobs}", *tests)
    print_at_once(f"{len(tests)} tests with all guards in place  ({time.monotonic() - began_at:.0f} s)")
    return output if exit_code else ""


def all_tests_fail_without(guard: Guard, copies: "SimpleQueue[Path]") -> bool:
    """Take the guard out of a free copy of the tree, run its tests one by one, and return whether all of them fail."""
    copy, began_at, failure_output = copies.get(), time.monotonic(), ""
    try:
        guard.apply_patch(copy)
        verdict = "red"
        for test in guard.failing_tests:
            exit_code, output = run_pytest(copy, test)
            verdict = verdict_of(test, exit_code, output)
            if verdict != "red":
                failure_output = f"{test}\n{output[-3000:]}"
                break
        guard.apply_patch(copy, reverse=True)
    except ValueError as error:
        verdict, failure_output = "BROKEN", str(error)
    copies.put(copy)
    line = f"{verdict:<6} {guard.name}  ({time.monotonic() - began_at:.0f} s)"
    print_at_once(f"{line}\n{failure_output}" if failure_output else line)
    return verdict == "red"


def run_pytest(copy: Path, *arguments: str) -> tuple[int, str]:
    """Run pytest in a copy, and return its exit code and its output.

    PYTHONPATH precedes the installed package, so that pytest's plugins, which import it early, import the copy.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    path = os.pathsep.join([str(copy), str(copy / "example_project")])
    process = subprocess.run(
        [*PYTEST, *PLUGINS, f"--timeout={LONGEST_TEST_SECONDS}", *arguments],
        cwd=copy,
        env={**environment, "PYTHONPATH": path, "PGOPTIONS": LOCK_TIMEOUT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return process.returncode, process.stdout


def verdict_of(test: str, exit_code: int, output: str) -> str:
    """Return "red" if the test fails, as it should; "GREEN" if it passes without the guard; otherwise "BROKEN"."""
    if exit_code == 0:
        return "GREEN"
    return "red" if exit_code == 1 and has_failed(test, output) else "BROKEN"


def has_failed(test: str, output: str) -> bool:
    """Whether the test itself has failed. An error in a fixture or an import does not prove that the guard works."""
    return re.search(rf"^FAILED {re.escape(test)}(\[| |$)", output, re.MULTILINE) is not None


def print_at_once(line: str) -> None:
    """Print a line by a single call, so that lines of several threads do not mix."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
