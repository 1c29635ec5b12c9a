"""Describes the tables of the queue by the output of `pg_dump`."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection
from psycopg import ConnectionInfo

from scripts.embedded_postgres import binaries

IGNORED_LINES = ("--", "\\", "SET ", "SELECT ")
"""The beginnings of lines of the dump that do not describe a table."""


def schema() -> Iterator[str]:
    """Yield a paragraph for each statement. The columns of a table are sorted; monthly partitions are left out."""
    for paragraph in re.split(r"\n{2,}", _dump()):
        lines = [line for line in paragraph.splitlines() if line and not line.startswith(IGNORED_LINES)]
        if lines and lines[0].startswith("CREATE TABLE"):
            end = next(number for number, line in enumerate(lines) if line.startswith(")"))
            lines[1:end] = sorted(f"{line.rstrip(',')}," for line in lines[1:end])
        if lines:
            yield "\n".join(lines) + "\n"


def _dump() -> str:
    connection.ensure_connection()
    server: ConnectionInfo = connection.connection.info
    address = ["--host", server.host, "--port", str(server.port), "--username", server.user, "--dbname", server.dbname]
    return _output(
        _pg_dump(server.server_version // 10_000),
        *("--schema-only", "--no-owner", "--no-privileges", "--no-password"),
        *("--table=skipqueue_*", "--exclude-table=skipqueue_archivedjob_*"),
        *address,
        PGPASSWORD=server.password,
    )


def _pg_dump(server_version: int) -> Path:
    """The oldest `pg_dump` that is not older than the server."""
    paths = [*Path("/usr/lib/postgresql").glob("*/bin/pg_dump"), binaries() / "pg_dump"]
    if on_path := shutil.which("pg_dump"):
        paths.append(Path(on_path))
    versions = {int(re.findall(r"\d+", _output(path, "--version"))[0]): path for path in paths}
    new_enough = [version for version in versions if version >= server_version]
    if not new_enough:
        pytest.skip(f"There is no pg_dump of PostgreSQL {server_version} or newer.")
    return versions[min(new_enough)]


def _output(program: Path, *arguments: str, **environment: str) -> str:
    command, all_variables = [str(program), *arguments], os.environ | environment
    return subprocess.run(command, env=all_variables, stdout=subprocess.PIPE, text=True, check=True).stdout
