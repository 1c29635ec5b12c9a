"""Check the queue for problems, store them as incidents, and announce when they begin and end.

One supervisor at a time checks. The table of incidents is small.

Any number of processes may check at the same time. Only one of them announces the beginning of an incident, and only
one its end. If a process dies before it confirms an announcement, another process announces the incident again.
"""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.utils import translation

from ...conf import using_database
from ...queue.store import Store
from ...values.bounds import MAX_KEY_BYTES
from ...values.codec import shorten
from ...worker.loop import Periodic
from .events import AlertOver, AlertRaised

if TYPE_CHECKING:
    from ...console.rules.rule import Finding
    from ...console.rules.verdict import Verdict

LASTS_SECONDS = 60.0
"""Checks must find a problem for this many seconds before it is announced. So a restart of workers is not an incident,
although jobs wait longer meanwhile."""

CALM_SECONDS = 120.0
"""A problem is over if checks have not found it for this many seconds, so that a recurring problem is one incident."""

CONFIRM_PATIENCE_SECONDS = 60.0
"""If a process has not confirmed an announcement after this many seconds, another process takes it over."""


Alert = AlertRaised | AlertOver


# Sent by note_incidents. Stores the problems that the rules found. Does not change an incident that is over but whose
# end has not yet been announced. Index: the primary key.
NOTE_FOUND = """
INSERT INTO skipqueue_incident AS incident (rule, subject, severity, title, since)
SELECT rule, subject, severity, title, COALESCE(since, statement_timestamp())
FROM json_to_recordset(%(incidents)s::json)
    AS found (rule text, subject text, severity text, title text, since timestamptz)
ORDER BY rule, subject
ON CONFLICT (rule, subject) DO UPDATE
SET since = LEAST(incident.since, EXCLUDED.since),
    severity = EXCLUDED.severity,
    title = EXCLUDED.title,
    calm_since = NULL
WHERE incident.over_at IS NULL
"""

# Sent by note_incidents. Makes incidents that the rules no longer find calm, and ends incidents that have been calm for
# `calm` seconds. Does not change incidents of rules in `unknown`, which could not be applied. The table has few rows.
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
        FROM json_to_recordset(%(incidents)s::json) AS found (rule text, subject text)
        WHERE found.rule = incident.rule AND found.subject = incident.subject
    )
"""

# Sent by note_incidents. Deletes incidents that became calm before they were raised. The table has few rows.
FORGET_CALM = "DELETE FROM skipqueue_incident WHERE rule > '' AND raised_at IS NULL AND calm_since IS NOT NULL"

# Sent by note_incidents. Raises the incidents that checks have found for `lasts` seconds. The table has few rows.
RAISE = """
UPDATE skipqueue_incident
SET raised_at = statement_timestamp()
WHERE rule > '' AND raised_at IS NULL AND found_at <= statement_timestamp() - make_interval(secs => %(lasts)s)
"""

# Sent by note_incidents. Returns the incidents whose beginning or end the caller must announce. No other process gets
# them, unless the caller has not confirmed them after `patience` seconds. The table has few rows.
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
    """Apply all rules, and note the incidents. Returns the events to send: see `note_incidents`."""
    from ...console.rules.verdict import Verdict

    with translation.override(None), using_database(store.alias):
        return note_incidents(store, Verdict.now(store))


def note_incidents(store: Store, verdict: "Verdict") -> list[Alert]:
    """Store the problems of the verdict as incidents. Returns the events to send.

    The caller must confirm each event when it has been handled.
    """
    from ...console.rules.verdict import UNAPPLIED_CODES

    if verdict.is_unknown:
        return []
    incidents: dict[tuple[str, str], dict[str, Any]] = {}
    for problem in verdict.problems:
        subject = shorten(problem.subject, MAX_KEY_BYTES)
        since = problem.since and problem.since.isoformat()
        incident = {
            "rule": problem.code,
            "subject": subject,
            "severity": problem.severity,
            "title": problem.title,
            "since": since,
        }
        if problem.code not in UNAPPLIED_CODES:
            incidents.setdefault((problem.code, subject), incident)
    values = {
        "incidents": json.dumps(list(incidents.values())),
        "unknown": list(verdict.unapplied),
        "calm": CALM_SECONDS,
    }
    store.execute(NOTE_FOUND, values)
    store.execute(NOTE_CALM, values)
    store.execute(FORGET_CALM)
    store.execute(RAISE, {"lasts": LASTS_SECONDS})
    alerts: list[Alert] = []
    rows = store.rows(CLAIM_ALERTS, {"patience": CONFIRM_PATIENCE_SECONDS})
    for rule, subject, severity, title, since, over_at, is_announced in rows:
        if is_announced:
            alerts.append(AlertOver(store.alias, rule, subject, severity, title, since, over_at))
        else:
            alerts.append(AlertRaised(store.alias, rule, subject, severity, title, since))
    return alerts


# Sent by confirm. Stores that the beginning was announced. Index: the primary key.
CONFIRM_BEGINNING = """
UPDATE skipqueue_incident
SET is_announced = true, claimed_at = NULL
WHERE rule = %(rule)s AND subject = %(subject)s AND NOT is_announced
"""

# Sent by confirm. Deletes an incident whose end was announced. Index: the primary key.
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
"""Seconds between two checks whether the announcements have been handled."""


# Sent by the supervisor. If no supervisor has checked for `interval` seconds, stores that the caller checks now, and
# returns a row. Index: the primary key.
TAKE_TURN = """
INSERT INTO skipqueue_incident AS incident (rule, subject, since)
VALUES ('', '', statement_timestamp())
ON CONFLICT (rule, subject) DO UPDATE SET since = statement_timestamp()
WHERE incident.since <= statement_timestamp() - make_interval(secs => %(interval)s)
RETURNING 1
"""


FIRST_ALERT_CHECK = 5.0
"""Seconds from a supervisor's start to its first check. The first check imports the console, which would delay jobs."""


class WatchAlerts(Periodic):
    """Checks the queue, and announces incidents by events, which the dispatcher's thread sends.

    Each run applies one rule, so that new jobs do not wait until all rules have been applied.
    """

    name = "alerts"

    def __init__(self, store: Store, delivered: Callable[[], bool]) -> None:
        """delivered: returns whether all events have been handled by log, signals and webhook."""
        self._store = store
        self._delivered = delivered
        self._unconfirmed: list[Alert] = []
        self._examination: Iterator[list[Finding] | None] | None = None  # while rules are left to apply
        self.run_again_in(min(FIRST_ALERT_CHECK, ALERT_CHECK_INTERVAL))

    def run(self, now: float) -> None:
        """Confirm this supervisor's announcements. If it has none, check the queue if it is this supervisor's turn."""
        if self._unconfirmed:
            if self._delivered():
                while self._unconfirmed:
                    confirm(self._store, self._unconfirmed[0])
                    self._unconfirmed.pop(0)
        elif self._examination or self._store.rows(TAKE_TURN, {"interval": ALERT_CHECK_INTERVAL - 1.0}):
            self._apply_next_rule()
        if self._examination:
            self.run_again_in(0.0)
        else:
            self.run_again_in(CONFIRM_INTERVAL if self._unconfirmed else ALERT_CHECK_INTERVAL)

    def _apply_next_rule(self) -> None:
        """Apply one rule. After the last rule, note the incidents, and send their events.

        Workers do not need the console, so this method imports it after the supervisor has forked its workers.
        """
        from ...console.rules.examination import examine_in_steps
        from ...console.rules.verdict import Verdict

        examination = self._examination or examine_in_steps(self._store, only_watched=True)
        self._examination = None  # an error ends the examination
        with translation.override(None), using_database(self._store.alias):
            findings = next(examination)
            if findings is None:
                self._examination = examination
                return
            self._unconfirmed = note_incidents(self._store, Verdict.of(findings))
        for alert in self._unconfirmed:
            self._store.send(alert)


# Sent by the verdict. Returns since when each problem has been known. The table has few rows.
KNOWN_SINCE = "SELECT rule, subject, since FROM skipqueue_incident WHERE rule > '' AND over_at IS NULL LIMIT 1000"


def known_since(store: Store) -> dict[tuple[str, str], datetime]:
    return {(rule, subject): since for rule, subject, since in store.rows(KNOWN_SINCE)}
