"""Shortens and formats tracebacks, so that they begin in the project's code instead of the worker's."""

import traceback
from pathlib import Path
from types import TracebackType

PACKAGE = str(Path(__file__).parents[1]) + "/"


def cut(error: BaseException) -> None:
    """Remove this package's frames from the outer end of the error's traceback. The innermost frame stays.

    The removed frames would keep local variables of the worker alive as long as the error.
    """
    found = error.__traceback__
    while found is not None and found.tb_next is not None and _is_in_package(found):
        found = found.tb_next
    error.__traceback__ = found


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


def _is_in_package(found: TracebackType) -> bool:
    return found.tb_frame.f_code.co_filename.startswith(PACKAGE)
