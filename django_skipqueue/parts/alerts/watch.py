"""Applies the rules of the verdict in one supervisor at a time, writes the incidents, and announces them.

The statements write the small incident table.

Invariant: any number of processes may check at once. One of them announces the beginning of an incident, and one its
end. If a process dies before it confirms an announcement, another process announces the incident a second time.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.utils import translation

from ...conf import using_database
from ...queue.store import Store
from ...values.bounds import MAX_KEY_BYTES
from ...values.codec import shorten
from ...worker.loop import Periodic
from .events import AlertOver, AlertRaised

LASTS_SECONDS = 60.0
"""Checks must find a problem for this time before a process announces it: a restart of workers is no incident, although
jobs that wait for the workers may have been due for long."""

CALM_SECONDS = 120.0
"""A problem is over when checks have not found it for this time, so that a recurring problem is one incident."""

CONFIRM_PATIENCE_SECONDS = 60.0
"""Seconds after which another process claims an alert that its process has not confirmed."""


Alert = AlertRaised | AlertOver


# check: writes the problems that the rules find. An incident that is over, and whose end nobody has announced yet, does
# not change. Index: the primary key.
NOTE_FOUND = """
INSERT INTO skipqueue_incident AS incident (rule, subject, severity, title, since)
SELECT rule, subject, severity, title, COALESCE(since, statement_timestamp())
FROM json_to_recordset(%(found)s::json)
    AS found (rule text, subject text, severity text, title text, since timestamptz)
ORDER BY rule, subject
ON CONFLICT (rule, subject) DO UPDATE
SET since = LEAST(incident.since, EXCLUDED.since),
    severity = EXCLUDED.severity,
    title = EXCLUDED.title,
    calm_since = NULL
WHERE incident.over_at IS NULL
"""

# check: all incidents that the rules did not find become calm, and are over after `calm` seconds. The incidents of the
# rules in `unknown`, which could not be applied, do not change. The table has few rows.
NOTE_CALM = """
UPDATE skipqueue_incident AS incident
SET calm_since = COALESCE(incident.calm_since, statement_timestamp()),
    over_at = CASE
        WHEN incident.calm_since <= statement_timestamp() - make_interval(secs => %(calm)s) THEN statement_timestamp()
    END
WHERE
    incident.rule > ''
    AND incident.over_at IS NULL
    AND incident.rule <> ALL (%(unknown)s::text[])
    AND NOT EXISTS (
        SELECT
        FROM json_to_recordset(%(found)s::json) AS found (rule text, subject text)
        WHERE found.rule = incident.rule AND found.subject = incident.subject
    )
"""

# check: deletes the incidents that have become calm before a check raised them. The table has few rows.
FORGET_CALM = "DELETE FROM skipqueue_incident WHERE rule > '' AND raised_at IS NULL AND calm_since IS NOT NULL"

# check: raises the incidents that checks have found for `lasts` seconds. The table has few rows.
RAISE = """
UPDATE skipqueue_incident
SET raised_at = statement_timestamp()
WHERE rule > '' AND raised_at IS NULL AND found_at <= statement_timestamp() - make_interval(secs => %(lasts)s)
"""

# check → the incidents whose beginning or end the caller has to announce. No other process gets them, unless the caller
# has not confirmed them after `patience` seconds. The table has few rows.
CLAIM_ALERTS = """
UPDATE skipqueue_incident
SET claimed_at = statement_timestamp()
WHERE
    rule > ''
    AND raised_at IS NOT NULL
    AND (NOT is_announced OR over_at IS NOT NULL)
    AND (claimed_at IS NULL OR claimed_at <= statement_timestamp() - make_interval(secs => %(patience)s))
RETURNING rule, subject, severity, title, since, over_at, is_announced
"""


def check(store: Store) -> list[Alert]:
    """Apply the rules, and return the events to send. The caller must confirm each when the sinks have handled it.

    Workers do without the console, so this imports it after the supervisor has forked them.
    """
    from ...console.rules.verdict import UNAPPLIED_CODES, Verdict

    with translation.override(None), using_database(store.alias):
        verdict = Verdict.now(store)
    if verdict.is_unknown:
        return []
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for each in verdict.problems:
        subject = shorten(each.subject, MAX_KEY_BYTES)
        since = each.since and each.since.isoformat()
        noted = {"rule": each.code, "subject": subject, "severity": each.severity, "title": each.title, "since": since}
        if each.code not in UNAPPLIED_CODES:
            found.setdefault((each.code, subject), noted)
    values = {"found": json.dumps(list(found.values())), "unknown": list(verdict.unapplied), "calm": CALM_SECONDS}
    store.execute(NOTE_FOUND, values)
    store.execute(NOTE_CALM, values)
    store.execute(FORGET_CALM)
    store.execute(RAISE, {"lasts": LASTS_SECONDS})
    return [
        AlertOver(store.alias, *row[:-1]) if row[-1] else AlertRaised(store.alias, *row[:-2])
        for row in store.rows(CLAIM_ALERTS, {"patience": CONFIRM_PATIENCE_SECONDS})
    ]


# confirm: notes that the process has announced the beginning. Index: the primary key.
CONFIRM_BEGINNING = """
UPDATE skipqueue_incident
SET is_announced = true, claimed_at = NULL
WHERE rule = %(rule)s AND subject = %(subject)s AND NOT is_announced
"""

# confirm: deletes the incident whose end the process has announced. Index: the primary key.
CONFIRM_END = """
DELETE FROM skipqueue_incident
WHERE rule = %(rule)s AND subject = %(subject)s AND is_announced AND over_at IS NOT NULL
"""


def confirm(store: Store, alert: Alert) -> None:
    statement = CONFIRM_END if isinstance(alert, AlertOver) else CONFIRM_BEGINNING
    store.execute(statement, {"rule": alert.rule, "subject": alert.subject})


ALERT_CHECK_INTERVAL = 20.0
"""Seconds between two checks by any supervisor."""

CONFIRM_INTERVAL = 0.5
"""Seconds between two checks whether the sinks have handled the alerts."""


# supervisor → a row if no supervisor has checked for `interval` seconds: then the caller checks. Index: the primary
# key.
TAKE_TURN = """
INSERT INTO skipqueue_incident AS incident (rule, subject, since)
VALUES ('', '', statement_timestamp())
ON CONFLICT (rule, subject) DO UPDATE SET since = statement_timestamp()
WHERE incident.since <= statement_timestamp() - make_interval(secs => %(interval)s)
RETURNING 1
"""


FIRST_ALERT_CHECK = 5.0
"""Seconds from the start of a supervisor to its first check: the console takes time to import, and jobs come first."""


class WatchAlerts(Periodic):
    """Checks, and announces incidents by events, which the dispatcher's thread sends."""

    name = "alerts"

    def __init__(self, store: Store, delivered: Callable[[], bool]) -> None:
        """delivered: returns whether the sinks have handled all events."""
        self._store = store
        self._delivered = delivered
        self._unconfirmed: list[Alert] = []
        self.run_again_in(min(FIRST_ALERT_CHECK, ALERT_CHECK_INTERVAL))

    def run(self, now: float) -> None:
        """Confirm the alerts that this supervisor has announced. If there are none, check, if no supervisor has."""
        if self._unconfirmed:
            if self._delivered():
                while self._unconfirmed:
                    confirm(self._store, self._unconfirmed[0])
                    self._unconfirmed.pop(0)
        elif self._store.rows(TAKE_TURN, {"interval": ALERT_CHECK_INTERVAL - 1.0}):
            self._unconfirmed = check(self._store)
            for alert in self._unconfirmed:
                self._store.send(alert)
        self.run_again_in(CONFIRM_INTERVAL if self._unconfirmed else ALERT_CHECK_INTERVAL)


# verdict → since when the problems of incidents are known. The table has few rows.
KNOWN_SINCE = "SELECT rule, subject, since FROM skipqueue_incident WHERE rule > '' AND over_at IS NULL LIMIT 1000"


def known_since(store: Store) -> dict[tuple[str, str], datetime]:
    return {(rule, subject): since for rule, subject, since in store.rows(KNOWN_SINCE)}
