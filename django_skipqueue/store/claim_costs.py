"""The methods that measure what a claim reads, and read what was measured."""

import json
from typing import NamedTuple

from django.db import OperationalError
from psycopg.errors import QueryCanceled

from . import sql
from .session import Session

CLAIM_LIMIT = 100
"""Jobs that the search of a claim looks for when it is measured."""

MEASURE_SECONDS = 1.0
"""The statement timeout of this search."""


class ClaimCost(NamedTuple):
    queue_name: str
    pages: int
    rows: int
    """Entries of the claim index, those of dead rows among them."""


class ClaimCosts(Session):
    """Used by supervisors, the doctor and the metrics. No row is locked, and no claim is slowed down."""

    def measure_claim(self, queue_name: str) -> ClaimCost | None:
        """Search as a claim from the head of the queue does. `None`: it takes too long."""
        try:
            with self.short_transaction(MEASURE_SECONDS):
                ((before,),) = self.rows(sql.ENTRIES_READ)
                ((plan,),) = self.rows(sql.EXPLAIN_CLAIM, {"queue_name": queue_name, "limit": CLAIM_LIMIT})
                ((after,),) = self.rows(sql.ENTRIES_READ)
        except OperationalError as error:
            if isinstance(error.__cause__, QueryCanceled):
                return None
            raise
        document = json.loads(plan) if isinstance(plan, str) else plan
        root = document[0]["Plan"]
        return ClaimCost(queue_name, root["Shared Hit Blocks"] + root["Shared Read Blocks"], after - before)

    def claim_costs(self, *, limit: int = 200) -> list[ClaimCost]:
        """What was measured lately: in the deepest queues, once a minute."""
        return [ClaimCost(*row) for row in self.rows(sql.CLAIM_COSTS, {"limit": limit})]
