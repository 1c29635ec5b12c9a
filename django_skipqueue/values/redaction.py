"""What of a job's arguments is shown to nobody: `redact` masks them for the admin, the log and every other surface.

Pure. A value is masked because of its name, at any depth. Invariant: the row keeps the real values, for the task needs
them; what is masked here is a copy.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

MASK = "••••••"

SECRETS = (
    "password",
    "passwords",
    "passwd",
    "token",
    "secret",
    "secrets",
    "api_key",
    "api_keys",
    "apikey",
    "apikeys",
    "authorization",
)
"""Whole words, wherever they stand in a name: `token` is in `accessToken` and `token-value`, not in `max_tokens`."""

SHORTEST = 6
"""Characters of a text that is masked within other texts too. A shorter one would be found where it is none."""

MOST = 1_000
"""Values of one job that are masked within other texts: each is looked for by itself."""

DEEPEST = 60
"""Levels of lists and dicts; what lies deeper is left out, so that no page fails at it."""

LONGEST_NAME = 1_000
"""Characters of a name that are looked at."""

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")


class Redacted(NamedTuple):
    """The arguments of a job as they may be shown."""

    args: list[Any]
    kwargs: dict[str, Any]
    secrets: tuple[str, ...]
    """The texts that were masked, the longest first."""

    def text(self, text: str) -> str:
        """`text`, such as an error's message, with none of the masked values in it."""
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        return text


def redact(
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    names: Sequence[str] = (),
    also: Iterable[str] = (),
) -> Redacted:
    """The arguments with a mask in place of every secret.

    names: of the positional arguments, as far as they are known.
    also: what is secret beside `SECRETS`, in the same spelling.
    """
    secret = tuple(_spelled(name) for name in (*SECRETS, *also))
    known = (*names, *[""] * len(args))
    positional = list(zip(known, args, strict=False))
    named = list((kwargs or {}).items())
    found = {text for name, value in (*positional, *named) for text in _hidden(name, value, secret)}
    return Redacted(
        [_masked(name, value, secret) for name, value in positional],
        {name: _masked(name, value, secret) for name, value in named},
        tuple(sorted(found, key=len, reverse=True)[:MOST]),
    )


def words(name: str) -> list[str]:
    """The words of a name in snake_case, camelCase or kebab-case, in lower case: `stripeAPIKey` is stripe, api, key."""
    return [word.lower() for word in WORD.findall(name[:LONGEST_NAME])]


Secrets = tuple[str, ...]
"""Each as `_spelled`."""


def _masked(name: str, value: Any, secrets: Secrets, depth: int = 0) -> Any:
    if value is None:
        return None
    if _is_secret(name, secrets):
        return MASK
    if isinstance(value, dict | list) and depth == DEEPEST:
        return "…"
    if isinstance(value, dict):
        return {key: _masked(key, item, secrets, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked("", item, secrets, depth + 1) for item in value]
    return value


def _hidden(name: str, value: Any, secrets: Secrets) -> Iterator[str]:
    """The texts within `value` that are masked, as far as they are long enough to be told from others.

    Not by recursion, since it has to see the whole depth.
    """
    waiting = [(name, value, False)]
    while waiting:
        name, value, within = waiting.pop()
        within = within or _is_secret(name, secrets)
        if isinstance(value, dict):
            waiting += [(key, item, within) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [("", item, within) for item in value]
        elif within and len(text := str(value)) >= SHORTEST and not isinstance(value, bool):
            yield text


def _is_secret(name: str, secrets: Secrets) -> bool:
    spelled = _spelled(name)
    return any(secret in spelled for secret in secrets)


def _spelled(name: str) -> str:
    """One spelling for all, with an end on either side of each word: `_stripe_api_key_`."""
    return f"_{'_'.join(words(name))}_"
