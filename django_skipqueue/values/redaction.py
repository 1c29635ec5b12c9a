"""Mask the secret arguments of a job where they are shown, such as in the admin and the log.

A value is masked if it has the name of a secret, such as `password`, at any depth. `redact` returns a masked copy. The
row of the job keeps the real values, because the task needs them.
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
"""A name is secret if it contains one of these as whole words. So `accessToken` and `token-value` are secret, but not
`max_tokens`."""

SHORTEST_MASKED = 6
"""Secrets of this length or longer are also masked in other texts, such as error messages. Shorter secrets would match
unrelated text."""

MOST_MASKED_VALUES = 1_000
"""How many secrets of one job are masked in other texts, at most, because each secret takes a separate search."""

DEEPEST = 60
"""How many levels of lists and dicts are shown. Deeper values are left out, so that a page never fails with a
RecursionError."""

LONGEST_READ_NAME = 1_000
"""How many characters of a name are checked for secret words."""

CONTAINERS = (dict, list, tuple)

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")


class Redacted(NamedTuple):
    """The arguments of a job with masks in place of their secrets, and the secrets themselves."""

    args: list[Any]
    kwargs: dict[str, Any]
    secrets: tuple[str, ...]
    """The secret values as strings, the longest first."""

    def text(self, text: str) -> str:
        """Mask the secret values in `text`, for example in an error message.

        If the text contains a backslash, it may contain secrets that Python or JSON has escaped. These are masked too.
        """
        spellings: Iterable[str] = self.secrets
        if "\\" in text:
            spellings = sorted(
                {spelling for secret in self.secrets for spelling in _spellings(secret)}, key=len, reverse=True
            )
        for spelling in spellings:
            text = text.replace(spelling, MASK)
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
    also: further secret names in addition to `SECRETS`, in snake_case.
    """
    also = tuple(also)
    padded_names = (*names, *[""] * len(args))
    positional = list(zip(padded_names, args, strict=False))
    named = list((kwargs or {}).items())
    secrets = {text for name, value in (*positional, *named) for text in _secrets_in(name, value, also)}
    return Redacted(
        [_masked(name, value, also) for name, value in positional],
        {name: _masked(name, value, also) for name, value in named},
        tuple(sorted(secrets, key=len, reverse=True)[:MOST_MASKED_VALUES]),
    )


def has_secret(name: str, value: Any, further_secrets: tuple[str, ...] = ()) -> bool:
    """Whether `redact` would mask the value, or a part of it."""
    if not isinstance(value, CONTAINERS):
        return value is not None and _is_secret(name, further_secrets)
    to_visit: list[tuple[str, Any]] = [(name, value)]
    while to_visit:
        name, value = to_visit.pop()
        if value is not None and _is_secret(name, further_secrets):
            return True
        if isinstance(value, CONTAINERS):
            to_visit += value.items() if isinstance(value, dict) else [("", item) for item in value]
    return False


class UnknownMask(ValueError):
    """An edited value has a mask where the original had no secret, so nobody knows which value the mask hides."""


def restored(edited: Any, shown: Any, original: Any) -> Any:
    """Put the secrets of `original` back into `edited`, which somebody has made from `shown`, a masked copy.

    An unchanged value becomes the original value again. A list item is put back only if nothing in it has changed,
    because its position alone does not identify it. Raises `UnknownMask` for any other mask.
    """
    if _is_same(edited, shown):
        return original
    if isinstance(edited, dict):
        was_dict = isinstance(shown, dict)
        return {
            key: restored(item, shown[key], original[key]) if was_dict and key in shown else _without_mask(item)
            for key, item in edited.items()
        }
    if isinstance(edited, list) and isinstance(shown, list) and len(edited) == len(shown):
        return [
            original_item if _is_same(item, shown_item) else _without_mask(item)
            for item, shown_item, original_item in zip(edited, shown, original, strict=True)
        ]
    return _without_mask(edited)


def _is_same(value: Any, other: Any) -> bool:
    """Whether both values are equal and of the same type. In Python 1, True and 1.0 are equal, but here they differ."""
    return value == other and repr(value) == repr(other)


def _without_mask(value: Any) -> Any:
    """Return the value. Raises `UnknownMask` if it contains a mask."""
    to_visit = [value]
    while to_visit:
        item = to_visit.pop()
        if item == MASK:
            raise UnknownMask
        if isinstance(item, dict):
            to_visit += item.values()
        elif isinstance(item, list):
            to_visit += item
    return value


def words(name: str) -> list[str]:
    """Split a name in snake_case, camelCase or kebab-case into lower-case words: `stripeAPIKey` → stripe, api, key."""
    return [word.lower() for word in WORD.findall(name[:LONGEST_READ_NAME])]


def _masked(name: str, value: Any, further_secrets: tuple[str, ...], depth: int = 0) -> Any:
    if value is None:
        return None
    if _is_secret(name, further_secrets):
        return MASK
    if isinstance(value, dict | list) and depth == DEEPEST:
        return "…"
    if isinstance(value, dict):
        return {key: _masked(key, item, further_secrets, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked("", item, further_secrets, depth + 1) for item in value]
    return value


def _secrets_in(name: str, value: Any, further_secrets: tuple[str, ...]) -> Iterator[str]:
    """Yield the secrets within `value` as strings, except secrets shorter than `SHORTEST_MASKED`.

    This function visits every level, even below `DEEPEST`. So it uses a list instead of recursion.
    """
    to_visit = [(name, value, False)]
    while to_visit:
        name, value, is_secret = to_visit.pop()
        is_secret = is_secret or _is_secret(name, further_secrets)
        if isinstance(value, dict):
            to_visit += [(key, item, is_secret) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            to_visit += [("", item, is_secret) for item in value]
        elif is_secret and len(text := str(value)) >= SHORTEST_MASKED and not isinstance(value, bool):
            yield text


def _spellings(text: str) -> Iterator[str]:
    """Yield the text itself, and the ways in which Python and JSON may escape it between quotes."""
    yield text
    yield repr(text)[1:-1]
    yield repr(f'"{text}')[2:-1]  # within a longer string that contains double quotes
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]


@lru_cache(maxsize=1024)
def _is_secret(name: str, further_secrets: tuple[str, ...]) -> bool:
    snake_name = _in_snake_case(name)
    return any(_in_snake_case(secret) in snake_name for secret in (*SECRETS, *further_secrets))


@lru_cache(maxsize=1024)
def _in_snake_case(name: str) -> str:
    """The lower-case words of a name, with an underscore before and after each word: `_stripe_api_key_`."""
    return f"_{'_'.join(words(name))}_"
