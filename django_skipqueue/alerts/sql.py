"""Every statement of the alerts, as a literal. They read few rows, by an index, and write the small incident table."""

# supervisor → a row if nobody has checked for `interval` seconds: it is this caller's turn. Index: the primary key.
TAKE_TURN = """
INSERT INTO skipqueue_incident AS incident (rule, queue_name, since)
VALUES ('', '', statement_timestamp())
ON CONFLICT (rule, queue_name) DO UPDATE SET since = statement_timestamp()
WHERE incident.since <= statement_timestamp() - make_interval(secs => %(interval)s)
RETURNING 1
"""

# no_worker → the seconds since the youngest heartbeat of a worker or a relay that serves each of these queues; an empty
# name: of any worker that runs jobs. NULL: there is none. A worker that serves all queues does not serve the `carried`
# ones. The table has a row for each worker process.
HEARTBEAT_AGES = """
SELECT asked.queue_name, date_part('epoch', statement_timestamp() - max(worker.heartbeat_at))
FROM
    unnest(%(queue_names)s::text[]) AS asked (queue_name)
    LEFT JOIN skipqueue_worker AS worker
        ON
            NOT worker.is_carrier
            AND CASE
                WHEN asked.queue_name = '' THEN worker.relay_of = ''
                WHEN worker.queues = '[]' THEN asked.queue_name <> ALL (%(carried)s::text[])
                ELSE worker.queues ? asked.queue_name
            END
GROUP BY asked.queue_name
LIMIT 1000
"""

# failed_share, recoveries → for each of these queues the attempts within `window` seconds, those of them that failed,
# and the recovered jobs; an empty name: of all queues. Index: the primary key of the roll-ups, one probe for each.
RECENT = """
SELECT
    asked.queue_name,
    COALESCE(sum(minute.completed + minute.retried + minute.failed + minute.discarded), 0)::bigint,
    COALESCE(sum(minute.retried + minute.failed), 0)::bigint,
    COALESCE(sum(minute.recovered), 0)::bigint
FROM
    unnest(%(queue_names)s::text[]) AS asked (queue_name)
    LEFT JOIN LATERAL (
        SELECT completed, retried, failed, discarded, recovered
        FROM skipqueue_rollup
        WHERE
            span = 60
            AND queue_name = asked.queue_name
            AND task = ''
            AND starts_at > statement_timestamp() - make_interval(secs => %(window)s)
    ) AS minute ON true
GROUP BY asked.queue_name
LIMIT 1000
"""

# check: writes the limits that are exceeded, each with its value and for how long. The value of `no_worker` is the time
# since the incident began. An incident whose end is still to be announced stays as it is. Index: the primary key.
NOTE_EXCEEDED = """
INSERT INTO skipqueue_incident AS incident (rule, queue_name, since, value, threshold)
SELECT rule, queue_name, statement_timestamp() - make_interval(secs => age), value, threshold
FROM json_to_recordset(%(exceeded)s::json)
    AS measured (rule text, queue_name text, age float8, value float8, threshold float8)
ORDER BY rule, queue_name
ON CONFLICT (rule, queue_name) DO UPDATE
SET since = LEAST(incident.since, EXCLUDED.since),
    value = CASE
        WHEN incident.rule = 'no_worker'
            THEN date_part('epoch', statement_timestamp() - LEAST(incident.since, EXCLUDED.since))
        ELSE EXCLUDED.value
    END,
    threshold = EXCLUDED.threshold,
    calm_since = NULL
WHERE incident.over_at IS NULL
"""

# check: the incidents of all other limits are calm, and over after `calm` seconds; `kept` are those that are not. An
# incident whose limit is no longer in the setting is calm as well. The table has a row for each limit at most.
NOTE_CALM = """
UPDATE skipqueue_incident AS incident
SET calm_since = COALESCE(incident.calm_since, statement_timestamp()),
    over_at = CASE
        WHEN incident.calm_since <= statement_timestamp() - make_interval(secs => %(calm)s) THEN statement_timestamp()
    END
WHERE
    incident.rule > ''
    AND incident.over_at IS NULL
    AND NOT EXISTS (
        SELECT
        FROM json_to_recordset(%(kept)s::json) AS kept (rule text, queue_name text)
        WHERE kept.rule = incident.rule AND kept.queue_name = incident.queue_name
    )
"""

# check: deletes the incidents that are calm before they were raised.
FORGET_CALM = "DELETE FROM skipqueue_incident WHERE rule > '' AND raised_at IS NULL AND calm_since IS NOT NULL"

# check: raises the incidents that have lasted long enough. A restart of all workers is no incident, so `no_worker` has
# to last for as long as its limit; the others are raised at once.
RAISE = """
UPDATE skipqueue_incident
SET raised_at = statement_timestamp()
WHERE
    rule > ''
    AND raised_at IS NULL
    AND (rule <> 'no_worker' OR since <= statement_timestamp() - make_interval(secs => threshold))
"""

# check → the incidents whose beginning or end is to be announced. This caller has claimed them: nobody else gets them,
# unless it dies before it confirms. After `patience` seconds the next one gets them.
CLAIM_ALERTS = """
UPDATE skipqueue_incident
SET claimed_at = statement_timestamp()
WHERE
    rule > ''
    AND raised_at IS NOT NULL
    AND (NOT is_announced OR over_at IS NOT NULL)
    AND (claimed_at IS NULL OR claimed_at <= statement_timestamp() - make_interval(secs => %(patience)s))
RETURNING rule, queue_name, value, threshold, since, over_at, is_announced
"""

# confirm: the beginning was announced. Index: the primary key.
CONFIRM_BEGINNING = """
UPDATE skipqueue_incident
SET is_announced = true, claimed_at = NULL
WHERE rule = %(rule)s AND queue_name = %(queue_name)s AND NOT is_announced
"""

# confirm: the end was announced. Index: the primary key.
CONFIRM_END = """
DELETE FROM skipqueue_incident
WHERE rule = %(rule)s AND queue_name = %(queue_name)s AND is_announced AND over_at IS NOT NULL
"""

# supervisor without limits: deletes all incidents, which nobody checks any more.
FORGET_ALL = "DELETE FROM skipqueue_incident"
