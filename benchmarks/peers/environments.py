"""A virtual environment for each peer, below `.peers/`, with the packages that the head of its module names.

The name of its folder has a hash of these packages, so that a change of the head makes a new environment.
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
"""Folders in which Debian installs servers. They may be missing in PATH."""


class NotInstalled(Exception):
    """A peer cannot be installed here, for the given reason."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The packages and programs that a peer needs, and its virtual environment."""

    peer: str
    dependencies: list[str]
    npm: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    apps: list[str] | None = None
    """The Django apps, if the peer runs in a Django project."""
    backend: str = ""
    """The backend class, if the peer is a backend for Django's task framework."""
    python_needed: str = ">=3.11"

    @classmethod
    def of(cls, peer: str) -> Self:
        """The environment that the head of the peer's module describes."""
        head = read_head((Path(__file__).parent / f"{peer}.py").read_text())
        python = {"python_needed": head["requires-python"]} if "requires-python" in head else {}
        return cls(peer=peer, dependencies=head["dependencies"], **python, **head.get("tool", {}).get("peer", {}))

    @property
    def folder(self) -> Path:
        """The folder of the virtual environment."""
        named = json.dumps([self.dependencies, self.npm, sys.version_info[:2]])
        return CACHE / f"{self.peer}-{hashlib.sha256(named.encode()).hexdigest()[:8]}"

    @property
    def python(self) -> str:
        """The Python interpreter of the virtual environment."""
        return str(self.folder / "bin" / "python")

    def install(self) -> None:
        """Install the packages, unless they are installed. Raises `NotInstalled` with the reason if this fails."""
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
        """The environment variables of its processes, which have the database as PGHOST, PGPORT and so on."""
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
        """The version of the package that the head names first."""
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
