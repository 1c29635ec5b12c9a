"""Shorten and format tracebacks and stacks, so that they begin in the project's code, not in the worker's code."""

import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType

PACKAGE = str(Path(__file__).parents[1]) + "/"

EXECUTOR = PACKAGE + "worker/attempts/executor.py"
"""The file that calls tasks."""

LIBRARY = re.compile(
    r"[\\/](?:site|dist)-packages[\\/]"  # packages that pip installs
    r"|[\\/]lib(?:64)?[\\/]python\d"  # Python itself
    r"|[\\/]django_skipqueue[\\/]"  # this package, even if it is installed elsewhere
    r"|^<(?:frozen|string)",
    re.IGNORECASE,
)
"""Matches the paths of files that do not belong to the project."""

CALL_START = re.compile(r"^(?=  File )", re.MULTILINE)
"""Matches where the text of a call begins in a formatted stack."""


def cut(error: BaseException) -> None:
    """Remove this package's frames from the outer end of the error's traceback. The innermost frame stays.

    Otherwise these frames would keep local variables of the worker alive as long as the error exists.
    """
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        if not entry.tb_frame.f_code.co_filename.startswith(PACKAGE):
            break
        entry = entry.tb_next
    error.__traceback__ = entry


def formatted_stack(frame: FrameType) -> str:
    """Format the stack of a running task. It begins with the first call that the executor made, as a traceback does."""
    calls = traceback.extract_stack(frame)
    after_executor = (position + 1 for position, call in enumerate(calls) if call.filename == EXECUTOR)
    first_shown = max(after_executor, default=0)
    while first_shown < len(calls) - 1 and calls[first_shown].filename.startswith(PACKAGE):
        first_shown += 1
    return "".join(traceback.format_list(calls[min(first_shown, len(calls) - 1) :]))


def innermost_calls(stack: str, most: int) -> str:
    """Return the last `most` calls of a formatted stack in one line."""
    calls = CALL_START.split(stack)[-most:]
    return " > ".join(line.strip() for call in calls for line in call.splitlines() if line.strip())


def place(error: BaseException) -> tuple[str, int | None]:
    """Return the function that raised the error, such as `payments.mailbox.deliver`, and the line number in its file.

    It is the innermost function of the project, or of a library if no function of the project is in the traceback.
    The name is empty if the error has no traceback.
    """
    frames = [(entry.tb_frame, entry.tb_lineno) for entry in _entries(error.__traceback__)]
    project_frames = [(frame, line) for frame, line in frames if not LIBRARY.search(frame.f_code.co_filename)]
    for frame, line in reversed(project_frames or frames):
        module = dict.get(frame.f_globals, "__name__")
        return f"{module if isinstance(module, str) else '?'}.{frame.f_code.co_qualname}", line
    return "", None


def _entries(entry: TracebackType | None) -> Iterator[TracebackType]:
    while entry is not None:
        yield entry
        entry = entry.tb_next


def stand_in(error: BaseException, message: str) -> Exception:
    """Make an exception with the same name and traceback, but with another message and no cause, to hide a secret."""
    same_named_class = type(type(error).__name__, (Exception,), {"__module__": type(error).__module__})
    replacement: Exception = same_named_class(message)
    return replacement.with_traceback(error.__traceback__)


def formatted(error: BaseException) -> str:
    """Return the traceback as text, or a note that it could not be formatted."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as str_error:  # the job must get its outcome even if `__str__` of the exception raises
        return f"<its traceback could not be formatted: {type(str_error).__name__}>"
