"""Shorten and format tracebacks and stacks, so that they begin in the project's code and not in the worker's."""

import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType

PACKAGE = str(Path(__file__).parents[1]) + "/"

EXECUTOR = PACKAGE + "worker/attempts/executor.py"
"""The file that calls tasks."""

LIBRARY = re.compile(
    r"[\\/](?:site|dist)-packages[\\/]"  # what pip installs
    r"|[\\/]lib(?:64)?[\\/]python\d"  # Python itself
    r"|[\\/]django_skipqueue[\\/]"  # ourselves, however installed
    r"|^<(?:frozen|string)",
    re.IGNORECASE,
)
"""Files that are not the project's."""

CALL_START = re.compile(r"^(?=  File )", re.MULTILINE)
"""The beginning of a call in a formatted stack."""


def cut(error: BaseException) -> None:
    """Remove this package's frames from the outer end of the error's traceback. The innermost frame stays.

    The removed frames would keep local variables of the worker alive as long as the error.
    """
    found = error.__traceback__
    while found is not None and found.tb_next is not None:
        if not found.tb_frame.f_code.co_filename.startswith(PACKAGE):
            break
        found = found.tb_next
    error.__traceback__ = found


def formatted_stack(frame: FrameType) -> str:
    """The stack of a running task as text: it begins with the first call below the executor, as a traceback does."""
    calls = traceback.extract_stack(frame)
    first = max((number for number, call in enumerate(calls, 1) if call.filename == EXECUTOR), default=0)
    while first < len(calls) - 1 and calls[first].filename.startswith(PACKAGE):
        first += 1
    return "".join(traceback.format_list(calls[min(first, len(calls) - 1) :]))


def innermost_calls(stack: str, most: int) -> str:
    """The last calls of a formatted stack, in one line. A line about repeated calls belongs to the call above it."""
    calls = CALL_START.split(stack)[-most:]
    return " > ".join(line.strip() for call in calls for line in call.splitlines() if line.strip())


def place(error: BaseException) -> tuple[str, int | None]:
    """The function that raised the error, such as `payments.mailbox.deliver`, and the line in its file.

    It is the innermost function of the project; if there is none, of a library. Empty without a traceback.
    """
    frames = [(found.tb_frame, found.tb_lineno) for found in _links(error.__traceback__)]
    own = [(frame, line) for frame, line in frames if not LIBRARY.search(frame.f_code.co_filename)]
    for frame, line in reversed(own or frames):
        module = dict.get(frame.f_globals, "__name__")
        return f"{module if isinstance(module, str) else '?'}.{frame.f_code.co_qualname}", line
    return "", None


def _links(found: TracebackType | None) -> Iterator[TracebackType]:
    while found is not None:
        yield found
        found = found.tb_next


def stand_in(error: BaseException, message: str) -> Exception:
    """Make an exception of the same name and traceback with another message and no cause, to hide a secret."""
    named = type(type(error).__name__, (Exception,), {"__module__": type(error).__module__})
    shown: Exception = named(message)
    return shown.with_traceback(error.__traceback__)


def formatted(error: BaseException) -> str:
    """The traceback as text, or a note that it could not be formatted."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as broken:  # an exception whose own __str__ raises must not cost the job its outcome
        return f"<its traceback could not be formatted: {type(broken).__name__}>"
