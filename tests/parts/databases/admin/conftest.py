"""The fixture `unreachable`: the alias of a database that cannot be reached."""

from collections.abc import Iterator

import pytest

from ....harness.reached import NOBODY, reached_at


@pytest.fixture
def unreachable() -> Iterator[str]:
    """The alias `other`, whose database cannot be reached: nobody listens at its address."""
    with reached_at("other", NOBODY) as alias:
        yield alias
