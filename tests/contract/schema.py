"""The tables of the queue, as `pg_dump` describes them."""

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

OF_THE_DUMP = ("--", "\\", "SET ", "SELECT ")
"""The beginnings of lines that describe the dump instead of the tables."""


def schema() -> Iterator[str]:
    """A paragraph for each statement. The columns of a table are sorted, and the monthly partitions left out."""
    for paragraph in re.split(r"\n{2,}", _dump()):
        lines = [line for line in paragraph.splitlines() if line and not line.startswith(OF_THE_DUMP)]
        if lines and lines[0].startswith("CREATE TABLE"):
            end = next(number for number, line in enumerate(lines) if line.startswith(")"))
            lines[1:end] = sorted(f"{line.rstrip(',')}," for line in lines[1:end])
        if lines:
            yield "\n".join(lines) + "\n"


def _dump() -> str:
    connection.ensure_connection()
    server: ConnectionInfo = connection.connection.info
    place = ["--host", server.host, "--port", str(server.port), "--username", server.user, "--dbname", server.dbname]
    return _output(
        _pg_dump(server.server_version // 10_000),
        *("--schema-only", "--no-owner", "--no-privileges", "--no-password"),
        *("--table=skipqueue_*", "--exclude-table=skipqueue_archivedjob_*"),
        *place,
        PGPASSWORD=server.password,
    )


def _pg_dump(version: int) -> Path:
    """The oldest `pg_dump` that is not older than the server."""
    found = [*Path("/usr/lib/postgresql").glob("*/bin/pg_dump"), binaries() / "pg_dump"]
    if on_path := shutil.which("pg_dump"):
        found.append(Path(on_path))
    versions = {int(re.findall(r"\d+", _output(path, "--version"))[0]): path for path in found}
    fitting = [each for each in versions if each >= version]
    if not fitting:
        pytest.skip(f"There is no pg_dump of PostgreSQL {version} or newer.")
    return versions[min(fitting)]


def _output(program: Path, *arguments: str, **environment: str) -> str:
    command, variables = [str(program), *arguments], os.environ | environment
    return subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout
