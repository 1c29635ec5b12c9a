"""The fixture `gone`: a database that cannot be reached any more."""

from collections.abc import Iterator

import pytest

from ...harness.reached import NOBODY, reached_at


@pytest.fixture
def gone() -> Iterator[str]:
    """The alias of a database that has gone away: nobody listens at its address."""
    with reached_at("other", NOBODY) as alias:
        yield alias
