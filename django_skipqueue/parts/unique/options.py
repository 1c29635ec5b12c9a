"""`unique_by`: makes the unique key of a job from its arguments.

Invariant: two calls of a task have the same key exactly if the chosen arguments are equal as JSON, however they are
passed. No key is too long for the index.
"""

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from django.conf import settings as django_settings
from django.utils.crypto import salted_hmac

from ...conf import settings
from ...exceptions import InvalidOption
from ...values.bounds import LIMITS, did_you_mean
from ...values.codec import decode, encode
from ...values.columns import MAX_KEY_BYTES
from ...values.records import JobSpec, OnConflict
from ...values.redaction import has_secret

Until = Literal["finished", "started"] | timedelta
CONFLICTS: tuple[OnConflict, ...] = ("skip", "replace", "raise", "rerun")

FINISHED = ("completed", "discarded", "failed")

SALT = "django_skipqueue.tasks.unique"

READABLE_BYTES = 900
"""The bytes of a long key that stay readable. After them comes a digest of the whole key."""


@dataclass(frozen=True, slots=True)
class UniqueBy:
    """The arguments that make the unique key of a task's jobs. Made by `unique_by`."""

    names: tuple[str, ...] = ()
    """Empty: all of them."""

    def check(self, signature: inspect.Signature) -> None:
        """Raise `InvalidOption` for a name that the task has no parameter for."""
        parameters = signature.parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return
        for name in self.names:
            if name not in parameters:
                meant = did_you_mean(name, list(parameters)) if parameters else ""
                raise InvalidOption(f"unique_by({name!r}): the task has no parameter of this name.{meant}")

    def key(self, task: str, given: Mapping[str, Any], *, redact: tuple[str, ...] = ()) -> str:
        """The key of a call, such as `shop.jobs.charge(payment_id=42)`.

        given: its arguments by name. redact: names of arguments that are secret, in addition to `SECRETS`: no secret is
        in the key.
        """
        texts = []
        for name in self.names or tuple(given):
            value = given.get(name)
            text = hashed(name, value) if has_secret(name, value, redact) else _canonical(name, value)
            texts.append(f"{name}={text}")
        return _fitting(f"{task}({', '.join(texts)})")


def unique_by(*names: str) -> UniqueBy:
    """The unique key of a task's jobs, made from these arguments: `@job(unique=unique_by("payment_id"))`.

    Without a name, it is made from all arguments. Whether an argument is passed by position, by name or as the default
    makes no difference. The task's name is part of the key, so two tasks never share one.

    Raises `InvalidOption` for what is not a name.
    """
    for name in names:
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidOption(f'unique_by takes names of arguments, such as unique_by("payment_id"), not {name!r}.')
    return UniqueBy(names)


def seconds_of(until: Until) -> float | None:
    """What `until` is in the column `unique_seconds`."""
    if isinstance(until, timedelta):
        return until.total_seconds()
    return 0.0 if until == "started" else None


def check_until(until: Any) -> None:
    """Raise `InvalidOption` for a value that `until` cannot have."""
    if isinstance(until, timedelta):
        if not LIMITS["timeout"].allows(until.total_seconds()):
            raise InvalidOption(f"until must be a timedelta above 0, and of at most a thousand years, not {until!r}.")
    elif until not in ("finished", "started"):
        raise InvalidOption(f'until must be "finished", "started" or a timedelta, not {until!r}.')


def check_on_conflict(on_conflict: Any) -> None:
    """Raise `InvalidOption` for a value that `on_conflict` cannot have."""
    if on_conflict not in CONFLICTS:
        listed = ", ".join(f'"{each}"' for each in CONFLICTS)
        raise InvalidOption(f"on_conflict must be one of {listed}, not {on_conflict!r}.")


def within_retention(spec: JobSpec) -> JobSpec:
    """Return the spec. Raises `InvalidOption` if finished jobs may be deleted before the time of their keys is over."""
    if not spec.unique_seconds:
        return spec
    own = decode(spec.retention) if spec.retention else {}
    for status in FINISHED:
        kept = settings.retention_of(status)
        general = float("inf") if kept is None else kept.total_seconds()
        shortest = min(general, own.get(status, general))
        if spec.unique_seconds > shortest:
            raise InvalidOption(
                f"until is {timedelta(seconds=spec.unique_seconds)}, but {status} jobs are deleted after "
                f"{timedelta(seconds=shortest)}, and a deleted job holds no key. "
                f"Raise SKIPQUEUE['RETENTION'][{status!r}], or keep the fact in a table of your own."
            )
    return spec


def hashed(name: str, value: Any) -> str:
    """What stands in a key in place of a value that is, or contains, a secret: a hash that needs the project's key.

    The oldest of its secret keys makes it. So nothing changes when a key moves to `SECRET_KEY_FALLBACKS`, neither for
    jobs that wait nor between processes with the settings of before and after.
    """
    oldest = [django_settings.SECRET_KEY, *django_settings.SECRET_KEY_FALLBACKS][-1]
    return f"hmac:{salted_hmac(SALT, _canonical(name, value), oldest, algorithm='sha256').hexdigest()}"


def _canonical(name: str, value: Any) -> str:
    """The value as JSON. Dictionaries that are equal have the same text."""
    text = encode(name, value)
    return json.dumps(decode(text), ensure_ascii=False, sort_keys=True) if text[0] in "{[" else text


def _fitting(key: str) -> str:
    whole = key.encode()
    if len(whole) <= MAX_KEY_BYTES:
        return key
    return f"{whole[:READABLE_BYTES].decode(errors='ignore')}… {_digest(key)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
