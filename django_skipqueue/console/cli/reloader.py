"""`runworker --reload`: run a worker in a child process, and replace the child when code changes.

This process ends after its child. If this process is killed, the child stops. If code cannot be imported, only the
child ends, and the next change starts another child.
"""

import os
import signal
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from django.utils import autoreload

from ...events import logs
from ...values.records import NEVER
from ...worker.loop import Wakeup

LIFELINE_VARIABLE = "SKIPQUEUE_LIFELINE"
"""Environment variable with the file descriptor of a pipe. The child's supervisor stops when the pipe is closed."""

MODULES_VARIABLE = "SKIPQUEUE_MODULES"
"""Environment variable with the file into which the child writes the paths of its imported modules."""

RELOAD_GRACE = 2.0
"""Before a reload releases running jobs, they have this many seconds to finish."""

TERMINAL_SIGNAL_SECONDS = 0.5
"""Seconds from a signal until this process stops the child. A terminal sends the signal to the child too."""

CHECK_INTERVAL = 1.0
"""Seconds between two checks for changes."""


class Reloader(autoreload.StatReloader):
    """Runs in the main thread of the command that the user started."""

    def __init__(self, command: list[str]) -> None:
        super().__init__()
        self._command = command
        self._wakeup = Wakeup()
        self._child: subprocess.Popen[bytes] | None = None
        self._lifeline = -1  # the write end of the pipe that keeps the child alive, or -1
        self._stop_signals = 0  # number of signals received
        self._stop_child_at = NEVER
        self._is_reloading = False  # the child is ending because code has changed
        self._is_first = True  # no child was reloaded yet
        self._started_at = 0.0  # in seconds since the epoch, like the times of files
        self._modified_at: dict[Path, float] = {}  # when each file was last changed
        self._folder = tempfile.TemporaryDirectory(prefix="skipqueue-")  # removed together with this object
        self._modules = Path(self._folder.name) / "modules"

    def run_child(self) -> int:
        """Keep a child running until it ends by itself, or a signal stops it. Returns its exit code."""
        self._wakeup.on_signals(self._on_stop_signal, (signal.SIGTERM, signal.SIGINT))
        self._wakeup.on_signals(lambda _: None, (signal.SIGCHLD,))  # ends the wait below when the child has ended
        autoreload.autoreload_started.send(sender=self)  # makes Django add the folders of templates and translations
        self._changed_file()
        self._start()
        while True:
            self._stop_child()
            code = self._exit_code_if_ended()
            if code is not None and not self._continues_after(code):
                # A child does not handle signals before its supervisor has started, or while Python exits.
                is_stopped = self._stop_signals and code in (-signal.SIGTERM, -signal.SIGINT)
                return 0 if is_stopped else code
            if self._stop_signals and self._child is None:
                return 0
            if not self._stop_signals and (changed := self._changed_file()):
                self._reload(changed)
            self._wakeup.wait(min(CHECK_INTERVAL, self._stop_child_at - time.monotonic()))

    def watched_files(self, include_globs: bool = True) -> Iterator[Path]:
        """Yield the files that this process and the child have imported, and the project's files next to them."""
        files = set(super().watched_files(include_globs))
        if self._modules.exists():
            files.update(map(Path, self._modules.read_text().splitlines()))
        project_files = (file for file in files if not any(file.is_relative_to(path) for path in INSTALLED))
        for folder in {file.parent for file in project_files}:
            files.update(folder.glob("*.py"))
        yield from files

    # The child

    def _start(self) -> None:
        read_end, self._lifeline = os.pipe()
        self._started_at = time.time()
        self._child = subprocess.Popen(
            self._command,
            env={
                **os.environ,
                LIFELINE_VARIABLE: str(read_end),
                MODULES_VARIABLE: str(self._modules),
                autoreload.DJANGO_AUTORELOAD_ENV: "true",
            },
            pass_fds=[read_end],
            # Until its supervisor handles signals, the child ignores Ctrl-C. Closing the lifeline stops it anyway.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # noqa: PLW1509 (no thread runs here)
        )
        os.close(read_end)
        self._is_reloading = False

    def _exit_code_if_ended(self) -> int | None:
        if self._child is None or self._child.poll() is None:
            return None
        code = self._child.returncode
        self._child, self._stop_child_at = None, NEVER
        self._close_lifeline()
        return code

    def _continues_after(self, code: int) -> bool:
        """Start another child if the child ended for a reload. Returns whether to continue, now or after a change."""
        if self._is_reloading and not self._stop_signals:
            self._is_first = False
            self._start()
            return True
        if code and not (self._is_first or self._stop_signals):
            logs.waiting_for_change(code)
            return True
        return False

    def _reload(self, changed: Path) -> None:
        if self._child is None:
            logs.reloading(_relative_path(changed), None)
            self._start()
        elif not self._is_reloading:
            logs.reloading(_relative_path(changed), RELOAD_GRACE)
            self._is_reloading = True
            self._child.send_signal(signal.SIGTERM)
            self._stop_child_at = time.monotonic() + RELOAD_GRACE

    def _changed_file(self) -> Path | None:
        """Return a file that was changed since the last check, or added since the child started."""
        changed = None
        for path, time_changed in self.snapshot_files():
            if time_changed > self._modified_at.get(path, self._started_at or NEVER):
                changed = path
            self._modified_at[path] = time_changed
        return changed

    # Signals

    def _on_stop_signal(self, _: int) -> None:
        """Count the signal, and wait a moment before stopping the child, because Ctrl-C has reached it too."""
        self._stop_signals += 1
        self._stop_child_at = min(self._stop_child_at, time.monotonic() + TERMINAL_SIGNAL_SECONDS)

    def _stop_child(self) -> None:
        """Stop the child by closing its lifeline. After a second signal or a reload, also send SIGTERM."""
        if self._child is None or self._stop_child_at > time.monotonic():
            return
        self._stop_child_at = NEVER
        if (self._stop_signals >= 2 or self._is_reloading) and self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
        self._close_lifeline()

    def _close_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def report_modules(environment: MutableMapping[str, str]) -> int | None:
    """In the child: write the list of imported modules. Returns the lifeline, or `None` without a reloader."""
    if path := environment.pop(MODULES_VARIABLE, None):
        Path(path).write_text("\n".join(map(str, autoreload.iter_all_python_module_files())))
    lifeline = environment.pop(LIFELINE_VARIABLE, None)
    return int(lifeline) if lifeline else None


def _relative_path(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


INSTALLED = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
