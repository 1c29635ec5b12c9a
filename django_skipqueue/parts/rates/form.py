"""How many jobs of a queue may start in a time: its form, and what operators set."""

from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminTextInputWidget
from django.utils.translation import gettext_lazy as _

from ...console.admin.queue_forms import SettingForm
from ...console.parts import QueueOption
from ...exceptions import InvalidOption
from ...models import Queue
from ...values.settings import MOST_A_SECOND, interval_of, rate_text
from .queues import rate_columns_of, rated_queues


class RateForm(SettingForm):
    choice, typed = "rate", "own"
    any_number, this_value = _("any number of jobs"), _("this one:")

    rate = forms.ChoiceField(label=_("Rate"))
    own = forms.CharField(
        label=_("Jobs in a time"),
        help_text=_("Only for a rate that is not in the list: 50/s, 100/m, 10/h, 1/d or 3/10s."),
        max_length=20,
        required=False,
        widget=AdminTextInputWidget,
    )

    @classmethod
    def as_typed(cls, value: float | str) -> str:
        return value if isinstance(value, str) else rate_text(value)

    def problem(self, typed: str) -> Any:
        try:
            interval_of(typed)
        except InvalidOption:
            wrong = _("A number of jobs and a time, such as 50/s, 100/m or 3/10s; at most %(most)s in a second.")
            return wrong % {"most": f"{MOST_A_SECOND:,}"}
        return ""


def _by_settings(queue_name: str) -> tuple[str | None, float | None]:
    columns = rate_columns_of(queue_name)
    return columns.rate_key, columns.rate_interval


RATES = QueueOption(
    name="start-rate",
    column="rate_interval",
    names=rated_queues,
    by_settings=_by_settings,
    form=RateForm,
    change=Queue.rate,
    follow_settings=Queue.rate_by_settings,
    label=_("rate limit"),
    page="rate",
    button=_("Rate"),
    button_in_full=_("Change the rate of the queue %(queue)s"),
    title=_("Change the rate of the queue “%(queue)s”?"),
    heading=_("Change the rate"),
    explanation=_(
        "So many of its jobs start in a time, over all workers; the others wait. Jobs that run are left alone, and "
        "those that are queued wait again."
    ),
    without=_('Its jobs can be given a rate once SKIPQUEUE["QUEUES"] has one for the queue, also None.'),
    changed=_("Jobs of the queue “%(queue)s” that may start: %(value)s."),
    follows_settings=_("The rate of the queue “%(queue)s” is that of the settings again."),
)
