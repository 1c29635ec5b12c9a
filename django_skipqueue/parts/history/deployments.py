"""What was deployed when, by the setting `DEPLOYMENT`: supervisors note it when they start."""

from ...conf import settings
from ...queue.store import Store
from ...values.records import NEVER
from ...worker.loop import Periodic

# supervisor, at its start: the first one with this deployment writes the row. Index: the primary key.
NOTE_DEPLOYMENT = "INSERT INTO skipqueue_deployment (name) VALUES (%(name)s) ON CONFLICT (name) DO NOTHING"

# pages → the deployments since a time, the last first: the name, and when it was first seen, in seconds since the
# epoch. The table has a row for each deployment of 90 days.
DEPLOYMENTS = """
SELECT name, date_part('epoch', first_at)
FROM skipqueue_deployment
WHERE first_at >= to_timestamp(%(since)s)
ORDER BY first_at DESC
LIMIT %(limit)s
"""

# supervisor: deletes deployments that were first seen more than `age` seconds ago, and that no worker has. Both tables
# are small.
PRUNE_DEPLOYMENTS = """
DELETE FROM skipqueue_deployment AS deployment
WHERE
    first_at < statement_timestamp() - make_interval(secs => %(age)s)
    AND NOT EXISTS (SELECT FROM skipqueue_worker AS worker WHERE worker.deployment = deployment.name)
"""


MOST_MARKS = 50
"""Deployments that a page shows: the last ones."""


class NoteDeployment(Periodic):
    name = "note_deployment"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, now: float) -> None:
        """Note what is deployed, once."""
        if settings.deployment:
            self._store.execute(NOTE_DEPLOYMENT, {"name": settings.deployment})
        self.due_at = NEVER


def deployments(store: Store, since: float) -> list[tuple[str, float]]:
    """Name and first time of each deployment that was first seen at this time or later, the last first."""
    return [(name, at) for name, at in store.rows(DEPLOYMENTS, {"since": since, "limit": MOST_MARKS})]


def prune_deployments(store: Store, age: float) -> None:
    store.execute(PRUNE_DEPLOYMENTS, {"age": age})
