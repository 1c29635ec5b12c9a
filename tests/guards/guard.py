"""Reads guards from their patch files, and applies their patches."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]

HEADERS = ("Guard", "Promise", "Red")


@dataclass(frozen=True)
class Guard:
    """A lock, a bound or a check in the package, which `patch` takes out."""

    name: str
    """The path of the patch below this folder, such as `settle/lease-fence`."""
    sentence: str
    """A sentence that says what the guard ensures."""
    promises: str
    """The promises and gates of the design that need the guard."""
    failing_tests: tuple[str, ...]
    """The ids (without parameters) of the tests that fail when the guard is taken out."""
    patch: Path

    @classmethod
    def read(cls, patch: Path) -> "Guard":
        """Read the file of a guard. Raises ValueError if a header is missing."""
        headers: dict[str, list[str]] = {header: [] for header in HEADERS}
        for line in patch.read_text().partition("\n--- ")[0].splitlines():
            header, _, text = line.partition(": ")
            if header in headers and text:
                headers[header].append(text)
        name = patch.relative_to(FOLDER).with_suffix("").as_posix()
        if missing := [header for header, texts in headers.items() if not texts]:
            raise ValueError(f"{name} has no header {missing[0]}:")
        return cls(name, " ".join(headers["Guard"]), "; ".join(headers["Promise"]), tuple(headers["Red"]), patch)

    def apply_patch(self, tree: Path, *, reverse: bool = False, only_check: bool = False) -> None:
        """Apply the patch to a tree of files. Raises ValueError if git refuses it."""
        options = ["--reverse"] * reverse + ["--check"] * only_check
        # Without the ceiling, `git apply` in a folder inside another checkout would skip all files without an error.
        process = subprocess.run(
            ["git", "apply", *options, self.patch],
            cwd=tree,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)},
            capture_output=True,
            text=True,
        )
        if process.returncode:
            raise ValueError(f"{self.name} cannot be applied: {process.stderr.strip()}")


def all_guards() -> list[Guard]:
    """Read the guards of all files, by their names."""
    return [Guard.read(patch) for patch in sorted(FOLDER.rglob("*.patch"))]
