"""A guard, as its patch file describes it, and how its patch is applied."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]

HEADERS = ("Guard", "Promise", "Red")


@dataclass(frozen=True)
class Guard:
    """A fence, a lock, a bound or a check, which `patch` takes out of the package."""

    name: str
    """The path of the patch below this folder, such as `settle/lease-fence`."""
    sentence: str
    """What the guard ensures."""
    promises: str
    """The promises and gates of the design that need the guard."""
    red: tuple[str, ...]
    """The ids of the tests that fail without the guard, without parameters."""
    patch: Path

    @classmethod
    def read(cls, patch: Path) -> "Guard":
        """Read the file of a guard. Raises ValueError if a header is missing."""
        found: dict[str, list[str]] = {header: [] for header in HEADERS}
        for line in patch.read_text().partition("\n--- ")[0].splitlines():
            header, _, text = line.partition(": ")
            if header in found and text:
                found[header].append(text)
        name = patch.relative_to(FOLDER).with_suffix("").as_posix()
        if missing := [header for header, texts in found.items() if not texts]:
            raise ValueError(f"{name} has no header {missing[0]}:")
        return cls(name, " ".join(found["Guard"]), "; ".join(found["Promise"]), tuple(found["Red"]), patch)

    def apply(self, tree: Path, *options: str) -> None:
        """Apply the patch to a tree of files, with options of `git apply`. Raises ValueError if git refuses it."""
        # Without the ceiling, `git apply` in a folder of another checkout would leave out all files, and say nothing.
        done = subprocess.run(
            ["git", "apply", *options, self.patch],
            cwd=tree,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise ValueError(f"{self.name} cannot be applied: {done.stderr.strip()}")


def all_guards() -> list[Guard]:
    """Read the guards of all files, by their names."""
    return [Guard.read(patch) for patch in sorted(FOLDER.rglob("*.patch"))]
