"""Which databases the functions of the testing kit look at."""

from ..conf import settings


def databases(named: str | None) -> tuple[str, ...]:
    """The alias that a test names, or all that workers serve."""
    if named is not None:
        return (named,)
    return settings.served_databases if settings.databases else (settings.database,)
