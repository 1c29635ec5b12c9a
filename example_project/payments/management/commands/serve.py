"""`manage.py serve`: the web server and a worker, until Ctrl-C stops both."""

import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from threading import Event
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from .prepare import NAME, PASSWORD

WELCOME = """
  The shop   http://localhost:{port}/
  The admin  http://localhost:{port}/admin/   log in as {name} with the password {password}

  Ctrl-C stops both the web server and the worker.
"""


class Command(BaseCommand):
    """Run the shop."""

    help = "Run the shop's web server and a worker. Ctrl-C stops both."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Where to listen."""
        parser.add_argument("--port", type=int, default=8000)

    def handle(self, *args: Any, port: int, **options: Any) -> None:
        """Start both; as soon as a signal comes or one of them ends, stop both."""
        call_command("prepare")
        self.stdout.write(WELCOME.format(port=port, name=NAME, password=PASSWORD))
        processes = {
            "web server": manage("runserver", "--noreload", str(port)),
            "worker": manage("runworker", "--no-reload"),
        }
        asked = Event()

        def stop(*_: int | FrameType | None) -> None:
            asked.set()
            for process in processes.values():
                process.terminate()

        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, stop)
        ended = ""
        while not asked.is_set() and not ended:
            time.sleep(0.2)
            ended = " and the ".join(name for name, process in processes.items() if process.poll() is not None)
        if not asked.is_set():
            stop()
            raise CommandError(f"The {ended} stopped by itself.")
        for process in processes.values():
            process.wait()


def manage(*arguments: str) -> subprocess.Popen[bytes]:
    """Start a command of manage.py where Ctrl-C does not reach it: a worker takes a second signal for "at once"."""
    return subprocess.Popen([sys.executable, settings.BASE_DIR / "manage.py", *arguments], start_new_session=True)
