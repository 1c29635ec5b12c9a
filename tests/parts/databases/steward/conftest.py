"""Fixtures: a `runworker` for both databases of the suite (a steward is its main process), and proxies before them."""

from collections.abc import Callable, Iterator

import pytest

from ....harness.processes import ManagePy
from ....harness.proxy import Proxy

ALIASES = ("default", "other")

Run = Callable[..., ManagePy]


@pytest.fixture
def steward(runworker: Run) -> Run:
    """Starts a `runworker` for both databases."""
    return lambda *arguments, **options: runworker(
        *arguments, "--name", "w", skipqueue={"DATABASES": ALIASES, **options.pop("skipqueue", {})}, **options
    )


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    proxy = Proxy()
    yield proxy
    proxy.close()


@pytest.fixture
def proxies() -> Iterator[dict[str, Proxy]]:
    """A proxy before each database, by its alias."""
    proxies = {alias: Proxy() for alias in ALIASES}
    yield proxies
    for proxy in proxies.values():
        proxy.close()


def behind(**proxies: Proxy) -> str:
    """The settings of a process that reaches these databases through proxies."""
    return "\n".join(
        f'DATABASES["{alias}"] = {{**DATABASES["{alias}"], **{proxy.settings!r}}}' for alias, proxy in proxies.items()
    )
