"""Sets up the log of `runworker`, unless the project configures it."""

import logging
import sys

from ..events import logs
from ..events.log_format import LineFormatter, wants_colour
from ..logging import JobContextFilter, JsonFormatter

TEXT, JSON = "text", "json"
"""The formats of `--log-format`."""


def configure(
    verbosity: int,
    *,
    colour: bool | None = None,
    tracebacks: bool = False,
    log_format: str | None = None,
    shows_django: bool = True,
) -> None:
    """Write lines to standard error if the project has not configured logging. Verbosity is that of Django's commands.

    The lines are those of this package, and those of all loggers that the project has left without a handler: the code
    of tasks. These name their job.

    colour: `None`: only on a terminal. tracebacks: log tracebacks even if standard error is not a terminal.
    log_format: `text` or `json`; `None`: text. A log line says so if it has no effect.
    shows_django: whether to write Django's own lines as well. Under `DEBUG` Django writes them itself.
    """
    package = logging.getLogger("django_skipqueue")
    if package.hasHandlers():
        if log_format:
            logs.log_format_ignored(log_format)
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_formatter(log_format, colour, tracebacks))
        handler.addFilter(JobContextFilter())
        handler.addFilter(lambda record: shows_django or record.name.partition(".")[0] != "django")
        logging.getLogger().addHandler(handler)
    if package.level == logging.NOTSET:
        package.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG))


def _formatter(log_format: str | None, colour: bool | None, tracebacks: bool) -> logging.Formatter:
    if log_format == JSON:
        return JsonFormatter()
    return LineFormatter(
        colour=wants_colour(sys.stderr) if colour is None else colour, tracebacks=tracebacks or sys.stderr.isatty()
    )
