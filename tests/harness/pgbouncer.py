"""A PgBouncer in transaction mode in front of the database under test.

Its pool is smaller than the number of its clients, so that another client may use a connection after each transaction.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from ..app.waiting import wait_until

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
PORT = 6432
POOL_SIZE = 3

CONFIGURATION = """\
[databases]
{database} = {target}

[pgbouncer]
unix_socket_dir = {folder}
listen_port = {port}
logfile = {folder}/log
auth_type = any
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 200
ignore_startup_parameters = {ignored}
"""


@contextmanager
def pgbouncer(server: Mapping[str, Any], *, ignored: str = "") -> Iterator[Path]:
    """Run a PgBouncer in front of a server. Yields the folder with its socket.

    server: the server's `host`, `port`, `dbname`, `user` and `password`.
    ignored: startup parameters that PgBouncer ignores. It refuses other parameters that it does not know.
    """
    assert PGBOUNCER
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer-"))
    target = " ".join(f"{name}='{value}'" for name, value in server.items() if value)
    configuration = CONFIGURATION.format(
        database=server["dbname"], target=target, folder=folder, port=PORT, pool_size=POOL_SIZE, ignored=ignored
    )
    (folder / "ini").write_text(configuration)
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:  # PgBouncer refuses to run as root
        user = pwd.getpwnam("nobody")
        os.chown(folder, user.pw_uid, user.pw_gid)
        folder.chmod(0o755)
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    process = subprocess.Popen([PGBOUNCER, "--quiet", str(folder / "ini")], cwd="/", **identity)
    try:
        wait_until(lambda: process.poll() is not None or (folder / f".s.PGSQL.{PORT}").exists(), "PgBouncer listens")
        assert process.poll() is None, (folder / "log").read_text()
        yield folder
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        shutil.rmtree(folder)


def statistics(folder: Path) -> dict[str, Any]:
    """The numbers of clients and servers that PgBouncer reports for its only pool."""
    with psycopg.connect(
        host=str(folder), port=PORT, dbname="pgbouncer", user="pgbouncer", autocommit=True, prepare_threshold=None
    ) as console:
        cursor = psycopg.ClientCursor(console, row_factory=psycopg.rows.dict_row)
        pools = cursor.execute("SHOW POOLS").fetchall()
    return next(pool for pool in pools if pool["database"] != "pgbouncer")
