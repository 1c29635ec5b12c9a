"""`with_options`: gives a task of Django's, `@task`, the options that `@job` takes itself.

Invariant: the options are checked at import, and kept on the function: every backend can read them, and needs not.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from ..exceptions import InvalidOption, InvalidTask
from .advice import check_names
from .given import Given, checked
from .options import RunOptions

ATTRIBUTE = "_skipqueue_options"
"""The function's attribute."""

DJANGOS = ("queue_name", "priority")
"""The options that Django's `@task` takes itself."""

F = TypeVar("F", bound=Callable[..., Any])


def with_options(**options: Unpack[RunOptions]) -> Callable[[F], F]:
    """Give a task of Django's the options that `@job` has: `@task` above `@with_options(timeout=30)`.

    Takes every option of `.using()` and of `@job` but these: `queue_name` and `priority`, which `@task` takes itself;
    `run_after` and `database`, which belong to a call and to a backend; `name`, `atomic` and `takes_context`.

    The backend of this package reads them; another backend does not. An option that `@task` or `.using()` has been
    given as well, on Django 6.1, is theirs.

    Raises `InvalidOption` for a value that cannot be used, and `InvalidTask` for what is not a function: it stands
    below `@task`, and `@job` takes the options itself.
    """
    check_names("with_options", options, RunOptions.__annotations__)
    for name in DJANGOS:
        if name in options:
            raise InvalidOption(f"Give {name} to @task itself: @task({name}=…).")
    given = checked(options)

    def keep(function: F) -> F:
        if not inspect.isfunction(function):
            raise InvalidTask(
                f"@with_options takes a function, not {function!r}. Put it below @task, next to the function; "
                "give @job the options themselves."
            )
        if hasattr(function, ATTRIBUTE):
            raise InvalidTask(f"{function.__qualname__} has two @with_options. Put all options into one.")
        setattr(function, ATTRIBUTE, given)
        return function

    return keep


def options_given_to(function: Callable[..., Any]) -> Given | None:
    """The options that `with_options` has kept on this function; `None` if there is none."""
    found: Given | None = getattr(function, ATTRIBUTE, None)
    return found
