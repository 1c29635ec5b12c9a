#!/usr/bin/env python3
"""Runs a command with CELERY_BROKER_URL set: `python scripts/with_rabbitmq.py COMMAND…`.

If CELERY_BROKER_URL is already set, the command gets the same value. Otherwise the script starts a RabbitMQ node with
its data in a temporary folder, which accepts connections from this machine only, and stops it after the command.
"""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.with_postgres import SIGNALS, run  # noqa: E402 (the path comes first)

if TYPE_CHECKING:
    from scripts.embedded_rabbitmq import RabbitMQ

HOW_TO_INSTALL = """RabbitMQ is not installed. On Debian and Ubuntu:

    sudo apt-get install --no-install-recommends rabbitmq-server

The package may start a server of its own; none is needed here. Or use one that runs elsewhere:

    CELERY_BROKER_URL=amqp://user:password@host:5672/vhost"""


class Stopped(BaseException):
    """A signal arrived before the command was started."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def main(command: list[str]) -> int:
    if not command:
        return fail("say which command to run", 2)
    if shutil.which(command[0]) is None:
        return fail(f"{command[0]}: there is no such command.", 127)
    try:
        if os.environ.get("CELERY_BROKER_URL"):
            os.execvp(command[0], command)
        from scripts.embedded_rabbitmq import RabbitMQ, program  # here, because CELERY_BROKER_URL makes it unnecessary

        if program() is None:
            return fail(HOW_TO_INSTALL, 1)
        with running(RabbitMQ.in_temporary_folder()) as node:
            return run(command, {**os.environ, "CELERY_BROKER_URL": node.url()})
    except (OSError, RuntimeError, ImportError) as error:
        return fail(str(error), 1)
    except Stopped as stopped:
        return 128 + stopped.signum


def fail(message: str, code: int) -> int:
    print(f"with_rabbitmq: {message}", file=sys.stderr)
    return code


@contextlib.contextmanager
def running(node: "RabbitMQ") -> Iterator["RabbitMQ"]:
    """Start the node, which takes some seconds, and remove it at the end, even if a signal arrives during the start."""

    def stop(signum: int, _: FrameType | None) -> None:
        raise Stopped(signum)

    try:
        for signum in SIGNALS:
            signal.signal(signum, stop)
        print("RabbitMQ starts.", flush=True)
        node.start()
        yield node
    finally:
        for signum in SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
        node.remove()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
