#!/usr/bin/env python3
"""Runs a command with DATABASE_URL set: `python scripts/with_postgres.py [--database NAME] COMMAND…`.

If DATABASE_URL is already set, the command gets the same value. Otherwise the script starts an embedded PostgreSQL
server with its data in `.postgres/`, which accepts connections through a Unix socket only.

Each process that uses the server holds a shared lock on `.postgres/users`. A process that can lock this file
exclusively is the last user, and stops the server. The kernel releases a lock when its process ends, so even after a
`kill -9` nothing needs to be cleaned up.
"""

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.embedded_postgres import Server

ROOT = Path(__file__).resolve().parent.parent
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a command with DATABASE_URL set to an embedded PostgreSQL.")
    parser.add_argument("--database", default="skipqueue", help="created if missing (default: %(default)s)")
    parser.add_argument("--home", type=Path, default=ROOT / ".postgres", help="its folder (default: .postgres)")
    parser.add_argument("--not-durable", action="store_true", help="have no commit wait for the disk, as tests may")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND…")
    options = parser.parse_args()
    if not options.command:
        parser.error("say which command to run")
    if shutil.which(options.command[0]) is None:
        return fail(f"{options.command[0]}: there is no such command.", 127)
    try:
        if os.environ.get("DATABASE_URL"):
            os.execvp(options.command[0], options.command)
        sys.path.insert(0, str(ROOT))
        from scripts.embedded_postgres import Server  # here, since its imports may be missing if DATABASE_URL is set

        server = Server(options.home.absolute(), is_durable=not options.not_durable)
        with shared_server(server) as users:
            url = server.create_database(options.database)
            # The child also holds the lock. So if this process is killed, nobody stops the server while the command
            # runs.
            return run(options.command, {**os.environ, "DATABASE_URL": url}, inherited=[users])
    except (OSError, RuntimeError, ImportError) as error:
        return fail(str(error), 1)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def fail(message: str, code: int) -> int:
    print(f"with_postgres: {message}", file=sys.stderr)
    return code


def run(command: Sequence[str], environment: dict[str, str], *, inherited: Sequence[int] = ()) -> int:
    """Run the command as a child process, forward signals to it, and return its exit code as a shell would.

    inherited: descriptors of open files that the child also gets.
    """
    child = subprocess.Popen(command, env=environment, pass_fds=inherited)

    def forward(signum: int, _: FrameType | None) -> None:
        if signum == signal.SIGTERM or not terminal_signals_us():
            child.send_signal(signum)

    for signum in SIGNALS:
        signal.signal(signum, forward)
    code = child.wait()
    return code if code >= 0 else 128 - code


def terminal_signals_us() -> bool:
    """Whether the terminal itself sends Ctrl-C to the child. To send it again would tell a worker to stop at once."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


@contextlib.contextmanager
def shared_server(server: "Server") -> Iterator[int]:
    """Start the server unless it runs, and stop it if we are its last user. Yields the users' lock file."""
    server.home.mkdir(parents=True, exist_ok=True)
    with locked(server.home / "lock", fcntl.LOCK_EX):
        server.start()
        users = lock(server.home / "users", fcntl.LOCK_SH)
    try:
        yield users
    finally:
        for signum in SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
        os.close(users)
        with (
            locked(server.home / "lock", fcntl.LOCK_EX),
            contextlib.suppress(BlockingIOError),
            locked(server.home / "users", fcntl.LOCK_EX | fcntl.LOCK_NB),
        ):
            server.stop()


@contextlib.contextmanager
def locked(path: Path, operation: int) -> Iterator[None]:
    file = lock(path, operation)
    try:
        yield
    finally:
        os.close(file)


def lock(path: Path, operation: int) -> int:
    """Open the file and lock it. Returns its descriptor. The lock lasts until it is closed, or the process ends."""
    file = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, operation)
    except BlockingIOError:
        os.close(file)
        raise
    return file


if __name__ == "__main__":
    sys.exit(main())
