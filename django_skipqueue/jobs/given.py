"""The options that a decorator was given, checked: those of `@job`, and those of `with_options` for a `@task`.

Invariant: every `Given` holds values that the table can store and a worker can use.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from ..conf import own_retention_problems
from ..exceptions import InvalidOption
from ..values.backoff import Backoff, RetryPolicy, check_backoff
from ..values.redaction import words
from .options import Options, RunOptions, retention_column


@dataclass(frozen=True, slots=True)
class Given:
    """What a decorator was given for the jobs of a task and for their attempts."""

    options: Options = field(default_factory=Options)
    backoff: Backoff | None = None
    """`None`: none was given."""
    retry_on: tuple[type[BaseException], ...] | None = None
    discard_on: tuple[type[BaseException], ...] = ()
    redact: tuple[str, ...] = ()

    @property
    def policy(self) -> RetryPolicy:
        """The policy that decides the outcome of an exception."""
        policy = RetryPolicy(retry_on=self.retry_on, discard_on=self.discard_on)
        return policy if self.backoff is None else replace(policy, backoff=self.backoff)


def checked(options: RunOptions) -> Given:
    """Check the options. Raises `InvalidOption` for a value that cannot be used."""
    backoff = options.get("backoff")
    if backoff is not None:
        check_backoff(backoff)
    own: dict[str, Any] = dict(options)
    if "retention" in own:
        own["retention"] = _retention(own["retention"])
    return Given(
        Options().changed(own),
        backoff=backoff,
        retry_on=_exceptions("retry_on", options.get("retry_on")),
        discard_on=_exceptions("discard_on", options.get("discard_on")) or (),
        redact=_names_to_redact(options.get("redact", ())),
    )


def _retention(kept: Any) -> str | None:
    """`retention` as the column has it."""
    for problem in own_retention_problems("retention", kept):
        raise InvalidOption(problem)
    return retention_column(kept)


def _exceptions(option: str, classes: Any) -> tuple[type[BaseException], ...] | None:
    """`retry_on` or `discard_on` as a tuple. A single class is allowed too."""
    if classes is None:
        return None
    listed = classes if isinstance(classes, tuple | list) else (classes,)
    if not all(isinstance(each, type) and issubclass(each, BaseException) for each in listed):
        raise InvalidOption(f"{option} must be a tuple of exception classes, not {classes!r}.")
    return tuple(listed)


def _names_to_redact(names: Any) -> tuple[str, ...]:
    """`redact` as a tuple. A single name is allowed too."""
    listed = (names,) if isinstance(names, str) else names
    if not isinstance(listed, tuple | list) or not all(isinstance(name, str) and words(name) for name in listed):
        raise InvalidOption(f"redact must be a tuple of names of arguments, not {names!r}.")
    return tuple(listed)
