"""Record when each deployment started: a supervisor stores its setting `DEPLOYMENT` in a table when it starts."""

from ...conf import settings
from ...queue.store import Store
from ...values.records import NEVER
from ...worker.loop import Periodic

# Sent by the supervisor, at its start. The first supervisor of a deployment inserts its row. Index: the primary key.
NOTE_DEPLOYMENT = "INSERT INTO skipqueue_deployment (name) VALUES (%(name)s) ON CONFLICT (name) DO NOTHING"

# Sent by pages. Returns the deployments since a time, the newest first: the name, and when its first supervisor
# started, in seconds since the epoch. The table has one row for each deployment of the last 90 days.
DEPLOYMENTS = """
SELECT name, date_part('epoch', first_at)
FROM skipqueue_deployment
WHERE first_at >= to_timestamp(%(since)s)
ORDER BY first_at DESC
LIMIT %(limit)s
"""

# Sent by the supervisor. Deletes deployments that started more than `age` seconds ago and that no worker has now. Both
# tables are small.
PRUNE_DEPLOYMENTS = """
DELETE FROM skipqueue_deployment AS deployment
WHERE
    first_at < statement_timestamp() - make_interval(secs => %(age)s)
    AND NOT EXISTS (SELECT FROM skipqueue_worker AS worker WHERE worker.deployment = deployment.name)
"""


MOST_DEPLOYMENTS_MARKED = 50
"""The maximum number of deployments that a chart marks, the newest first."""


class NoteDeployment(Periodic):
    name = "note_deployment"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, now: float) -> None:
        """Store the deployment, once."""
        if settings.deployment:
            self._store.execute(NOTE_DEPLOYMENT, {"name": settings.deployment})
        self.due_at = NEVER


def deployments(store: Store, since: float) -> list[tuple[str, float]]:
    """Return the name and start of each deployment that started at `since` or later, the newest first."""
    return [
        (name, started_at)
        for name, started_at in store.rows(DEPLOYMENTS, {"since": since, "limit": MOST_DEPLOYMENTS_MARKED})
    ]


def prune_deployments(store: Store, age: float) -> None:
    store.execute(PRUNE_DEPLOYMENTS, {"age": age})
