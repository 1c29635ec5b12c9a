"""The methods by which a worker's connection keeps the plans of its prepared statements."""

from . import sql
from .statements import Statements


class Planning(Statements):
    """Used by workers, on a connection that no pooler shares."""

    def plan_once(self) -> None:
        """Have this connection plan each prepared statement once, for all values of its parameters."""
        self.execute(sql.PLAN_ONCE)

    def plan_anew(self) -> None:
        """Have this connection forget these plans."""
        self.execute(sql.PLAN_ANEW)
