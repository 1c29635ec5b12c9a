"""Which databases the functions of the testing kit look at."""

from ..conf import chosen_or_all


def databases(named: str | None) -> tuple[str, ...]:
    """The alias that a test names, or all that workers serve."""
    return chosen_or_all() if named is None else (named,)
