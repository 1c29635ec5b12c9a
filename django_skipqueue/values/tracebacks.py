"""Tracebacks as their reader wants them: they begin in the code of the project, not in that of the worker."""

import traceback
from pathlib import Path
from types import TracebackType

OURS = str(Path(__file__).parents[1]) + "/"  # the package


def cut(error: BaseException) -> None:
    """Take our own frames off the outer end of the error's traceback; if there is no other, the innermost stays.

    What keeps the error then keeps no variable of the worker's alive.
    """
    found = error.__traceback__
    while found is not None and found.tb_next is not None and _is_ours(found):
        found = found.tb_next
    error.__traceback__ = found


def stand_in(error: BaseException, message: str) -> Exception:
    """An exception of the same name and place that says only this, and has no cause: for one that tells a secret."""
    named = type(type(error).__name__, (Exception,), {"__module__": type(error).__module__})
    shown: Exception = named(message)
    return shown.with_traceback(error.__traceback__)


def formatted(error: BaseException) -> str:
    """The traceback as text; says so where it cannot be made."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as broken:  # an exception whose own __str__ raises must not cost the job its outcome
        return f"<its traceback could not be formatted: {type(broken).__name__}>"


def _is_ours(found: TracebackType) -> bool:
    return found.tb_frame.f_code.co_filename.startswith(OURS)
