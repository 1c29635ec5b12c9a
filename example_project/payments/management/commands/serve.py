"""`manage.py serve` runs the web server, a worker and simulated customers, until Ctrl-C stops them."""

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

  Customers come in for {minutes:g} minutes: jobs run, fail, are retried and wait for their time. See Jobs in the admin.
  Ctrl-C stops everything.
"""


class Command(BaseCommand):
    """Run the shop."""

    help = "Run the shop's web server and a worker. Ctrl-C stops both."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options for the port and for how long customers come in."""
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--minutes", type=float, default=10, help="how long customers come in")

    def handle(self, *args: Any, port: int, minutes: float, **options: Any) -> None:
        """Start web server, worker and customers. Stop all on a signal, or when the web server or the worker ends."""
        call_command("prepare")
        self.stdout.write(WELCOME.format(port=port, name=NAME, password=PASSWORD, minutes=minutes))
        processes = {
            "web server": manage("runserver", "--noreload", str(port)),
            "worker": manage("runworker", "--no-reload"),
        }
        customers = manage("customers", "--minutes", str(minutes))
        is_stopped = Event()

        def stop(*_: int | FrameType | None) -> None:
            is_stopped.set()
            for process in (*processes.values(), customers):
                process.terminate()

        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, stop)
        ended = ""
        while not is_stopped.is_set() and not ended:
            time.sleep(0.2)
            ended = " and the ".join(name for name, process in processes.items() if process.poll() is not None)
        if not is_stopped.is_set():
            stop()
            raise CommandError(f"The {ended} stopped by itself.")
        for process in (*processes.values(), customers):
            process.wait()


def manage(*arguments: str) -> subprocess.Popen[bytes]:
    """Start a command of manage.py so that Ctrl-C does not reach it: a second signal would stop a worker at once."""
    return subprocess.Popen([sys.executable, settings.BASE_DIR / "manage.py", *arguments], start_new_session=True)
