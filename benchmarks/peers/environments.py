"""An environment for each peer: a folder below `.peers/` with the packages that the head of its module names.

The folder is named after those packages, so that a change of the head makes a new one.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import environ

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".peers"

SERVERS = ("/usr/sbin", "/usr/local/sbin")
"""Where Debian puts programs that are servers, which is not on everybody's path."""


class NotInstalled(Exception):
    """Why a peer cannot be measured here."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What a peer needs to run, and where that is."""

    peer: str
    dependencies: list[str]
    npm: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    apps: list[str] | None = None
    """The Django apps of a peer that runs in a Django project."""
    backend: str = ""
    """The backend of Django's tasks, of a peer that is one."""
    python_needed: str = ">=3.11"

    @classmethod
    def of(cls, peer: str) -> Self:
        """As the head of the module says."""
        head = read_head((Path(__file__).parent / f"{peer}.py").read_text())
        python = {"python_needed": head["requires-python"]} if "requires-python" in head else {}
        return cls(peer=peer, dependencies=head["dependencies"], **python, **head.get("tool", {}).get("peer", {}))

    @property
    def folder(self) -> Path:
        """Where it is installed."""
        named = json.dumps([self.dependencies, self.npm, sys.version_info[:2]])
        return CACHE / f"{self.peer}-{hashlib.sha256(named.encode()).hexdigest()[:8]}"

    @property
    def python(self) -> str:
        """The interpreter that has the peer's packages."""
        return str(self.folder / "bin" / "python")

    def install(self) -> None:
        """Unless it is there already. Raises `NotInstalled` with the reason if it cannot be."""
        path = os.pathsep.join([os.environ.get("PATH", os.defpath), *SERVERS])
        missing = [program for program in self.programs if shutil.which(program, path=path) is None]
        if missing:
            raise NotInstalled(f"there is no {', '.join(missing)}")
        if sys.version_info < tuple(int(part) for part in self.python_needed.removeprefix(">=").split(".")):
            raise NotInstalled(f"it needs Python {self.python_needed}: make bench-peers PYTHON=… VENV=…")
        done = self.folder / "installed"
        if not done.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(self.folder)])
            _run([self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.dependencies])
            if self.npm:
                _run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(self.folder), *self.npm])
            done.touch()

    def variables(self, database_url: str) -> dict[str, str]:
        """The environment of its processes: the database as libpq and its like want it, in no other form."""
        clean = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "PYTHONPATH")}
        database = environ.Env.db_url_config(database_url)
        given = {
            "PGHOST": database.get("OPTIONS", {}).get("host") or database["HOST"],
            "PGPORT": str(database["PORT"] or 5432),
            "PGUSER": database["USER"],
            "PGPASSWORD": database["PASSWORD"],
            "PGDATABASE": database["NAME"],
        }
        project = {
            "DJANGO_SETTINGS_MODULE": "benchmarks.peers.project",
            "BENCHMARKS_APPS": " ".join(self.apps or ()),
            "BENCHMARKS_BACKEND": self.backend,
        }
        return {
            **clean,
            **{name: value for name, value in given.items() if value},
            **(project if self.apps else {}),
            "PYTHONPATH": str(ROOT),
            "BENCHMARKS_NODE_MODULES": str(self.folder / "node_modules"),
        }

    def version(self) -> str:
        """Of the package that the head names first."""
        if self.npm:
            name = self.npm[0].rpartition("@")[0]
            package: dict[str, Any] = json.loads((self.folder / "node_modules" / name / "package.json").read_text())
            return str(package["version"])
        name = re.split(r"[\[=<>~]", self.dependencies[0])[0]
        code = f"import importlib.metadata; print(importlib.metadata.version({name!r}))"
        return subprocess.run([self.python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def read_head(source: str) -> dict[str, Any]:
    """The inline script block at the top of a module (PEP 723)."""
    block = re.search(r"^# /// script\n((?:#.*\n)+?)# ///$", source, re.MULTILINE)
    if block is None:
        raise ValueError("The module has no inline script block.")
    return tomllib.loads("".join(line[2:] for line in block[1].splitlines(keepends=True)))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1]
        raise NotInstalled(f"{Path(command[0]).name} failed: {last}")
