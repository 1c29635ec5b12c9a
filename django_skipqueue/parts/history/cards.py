"""The cards of the dashboard that are read from roll-ups: jobs per minute, and recovered jobs."""

from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.admin.dashboard.cards import Card, Level, list_of
from ...console.admin.dashboard.situation import Situation
from ...console.counts import grouped, rate_in_words
from ...models import Status

# cards → the jobs that were recovered from dead workers, of a queue or of all: in the last 24 hours and in the last
# one, by the roll-ups of 1440 minutes. Index: the primary key of the roll-ups.
RECOVERED = """
SELECT
    COALESCE(sum(recovered), 0)::bigint,
    COALESCE(sum(recovered) FILTER (WHERE starts_at >= statement_timestamp() - interval '1 hour'), 0)::bigint
FROM skipqueue_rollup
WHERE
    span = 60
    AND queue_name = %(queue_name)s
    AND task = ''
    AND starts_at >= statement_timestamp() - interval '24 hours'
"""


MANY_RECOVERED = 100
"""Recovered jobs in an hour that are more than the end of a few workers explains."""


def rate(situation: Situation) -> Card:
    rates = situation.rates.get(situation.queue_name)
    number = rate_in_words(rates.per_minute if rates else 0.0)
    address = list_of(situation, status=Status.COMPLETED, time="hour")
    return Card(_("jobs per minute"), number, gettext("over the last 5 min"), address)


def recovered(situation: Situation) -> Card:
    ((of_day, of_hour),) = situation.store.rows(RECOVERED, {"queue_name": situation.queue_name})
    level: Level = "alarm" if of_hour >= MANY_RECOVERED else "warning" if of_hour else ""
    detail = gettext("%(number)s in the last hour") % {"number": grouped(of_hour)} if of_day else ""
    address = reverse("admin:django_skipqueue_worker_changelist")
    return Card(
        _("recovered in 24 h"), grouped(of_day), detail, address, level, permission="django_skipqueue.view_worker"
    )
