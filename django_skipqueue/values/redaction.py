"""Mask secret arguments of a job wherever they are shown, such as in the admin and the log. Pure.

The name of a value decides whether it is masked, at any depth. Invariant: `redact` returns a masked copy; the row
keeps the real values, because the task needs them.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

MASK = "••••••"

SECRETS = (
    "password", "passwords", "passwd", "pass_word", "passphrase", "pass", "pwd",
    "token", "secret", "secrets", "credential", "credentials", "authorization", "bearer", "jwt",
    "api_key", "api_keys", "apikey", "apikeys", "access_key", "private_key", "encryption_key", "signing_key",
    "cookie", "cookies", "session_id", "session_key", "otp", "cvc", "cvv", "card_number", "dsn",
)  # fmt: skip
"""A name that contains one of these as whole words is secret: `accessToken`, `token-value`, but not `max_tokens`."""

SHORTEST_MASKED = 6
"""Fewest characters of a secret that is masked in other texts as well. A shorter secret would match unrelated text."""

MOST_MASKED_VALUES = 1_000
"""Most values of one job that are masked in other texts: each takes a search of its own."""

DEEPEST = 60
"""Most levels of lists and dicts. Deeper values are left out, so that a page never fails with a RecursionError."""

LONGEST_READ_NAME = 1_000
"""Most characters of a name that are read."""

CONTAINERS = (dict, list, tuple)

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")


class Redacted(NamedTuple):
    args: list[Any]
    kwargs: dict[str, Any]
    secrets: tuple[str, ...]
    """The texts that were masked, the longest first."""

    def text(self, text: str) -> str:
        """Mask the secret values in `text`, for example in the message of an error.

        Masks a secret also as Python and JSON write it within quotes: if it differs then, there is a backslash.
        """
        forms: Iterable[str] = self.secrets
        if "\\" in text:
            forms = sorted({form for secret in self.secrets for form in _written(secret)}, key=len, reverse=True)
        for form in forms:
            text = text.replace(form, MASK)
        return text


def redact(
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    names: Sequence[str] = (),
    also: Iterable[str] = (),
) -> Redacted:
    """Return the arguments with a mask in place of every secret.

    names: the names of the positional arguments, as far as they are known.
    also: secret names in addition to `SECRETS`, in snake_case.
    """
    also = tuple(also)
    known = (*names, *[""] * len(args))
    positional = list(zip(known, args, strict=False))
    named = list((kwargs or {}).items())
    found = {text for name, value in (*positional, *named) for text in _hidden(name, value, also)}
    return Redacted(
        [_masked(name, value, also) for name, value in positional],
        {name: _masked(name, value, also) for name, value in named},
        tuple(sorted(found, key=len, reverse=True)[:MOST_MASKED_VALUES]),
    )


def has_secret(name: str, value: Any, also: tuple[str, ...] = ()) -> bool:
    """Whether `redact` masks the value, or a part of it."""
    if not isinstance(value, CONTAINERS):
        return value is not None and _is_secret(name, also)
    waiting: list[tuple[str, Any]] = [(name, value)]
    while waiting:
        name, value = waiting.pop()
        if value is not None and _is_secret(name, also):
            return True
        if isinstance(value, CONTAINERS):
            waiting += value.items() if isinstance(value, dict) else [("", item) for item in value]
    return False


class UnknownMask(ValueError):
    """A mask is in a place where the masked copy of a value has none, so nobody knows the value that it hides."""


def restored(given: Any, shown: Any, original: Any) -> Any:
    """Put the secrets of `original` back into `given`, which was edited from its masked copy `shown`.

    An unchanged value becomes the original value again. An item of a list is put back only as a whole, because
    its place alone does not identify it. Raises `UnknownMask` for any other mask.
    """
    if _is_same(given, shown):
        return original
    if isinstance(given, dict):
        known = isinstance(shown, dict)
        return {
            key: restored(item, shown[key], original[key]) if known and key in shown else _without_mask(item)
            for key, item in given.items()
        }
    if isinstance(given, list) and isinstance(shown, list) and len(given) == len(shown):
        return [
            value if _is_same(item, masked) else _without_mask(item)
            for item, masked, value in zip(given, shown, original, strict=True)
        ]
    return _without_mask(given)


def _is_same(value: Any, other: Any) -> bool:
    """Whether Python writes both values in one way: 1, True and 1.0 are equal in Python, but are different here."""
    return value == other and repr(value) == repr(other)


def _without_mask(value: Any) -> Any:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if item == MASK:
            raise UnknownMask
        if isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return value


def words(name: str) -> list[str]:
    """Split a name in snake_case, camelCase or kebab-case into lower-case words: `stripeAPIKey` is stripe, api, key."""
    return [word.lower() for word in WORD.findall(name[:LONGEST_READ_NAME])]


def _masked(name: str, value: Any, also: tuple[str, ...], depth: int = 0) -> Any:
    if value is None:
        return None
    if _is_secret(name, also):
        return MASK
    if isinstance(value, dict | list) and depth == DEEPEST:
        return "…"
    if isinstance(value, dict):
        return {key: _masked(key, item, also, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked("", item, also, depth + 1) for item in value]
    return value


def _hidden(name: str, value: Any, also: tuple[str, ...]) -> Iterator[str]:
    """The masked texts within `value`, except those shorter than `SHORTEST_MASKED`.

    Does not recurse, because it visits every level, also below `DEEPEST`.
    """
    waiting = [(name, value, False)]
    while waiting:
        name, value, within = waiting.pop()
        within = within or _is_secret(name, also)
        if isinstance(value, dict):
            waiting += [(key, item, within) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [("", item, within) for item in value]
        elif within and len(text := str(value)) >= SHORTEST_MASKED and not isinstance(value, bool):
            yield text


def _written(text: str) -> Iterator[str]:
    """The text as it is, and as Python and JSON write it between quotes."""
    yield text
    yield repr(text)[1:-1]
    yield repr(f'"{text}')[2:-1]  # in a longer string that has double quotes
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]


@lru_cache(maxsize=1024)
def _is_secret(name: str, also: tuple[str, ...]) -> bool:
    spelled = _spelled(name)
    return any(_spelled(secret) in spelled for secret in (*SECRETS, *also))


@lru_cache(maxsize=1024)
def _spelled(name: str) -> str:
    """The words of a name with an underscore before and after each: `_stripe_api_key_`."""
    return f"_{'_'.join(words(name))}_"
