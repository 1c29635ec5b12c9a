"""How many jobs of a queue may run at once: its form, and what operators set."""

from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminIntegerFieldWidget
from django.utils.translation import gettext_lazy as _

from ...console.admin.queue_forms import SettingForm
from ...console.counts import grouped
from ...console.parts import QueueOption
from ...models import Queue
from ...values.settings import LARGEST_LIMIT
from .queues import columns_of, limited_queues


class LimitForm(SettingForm):
    choice, typed = "limit", "number"
    any_number, this_value = _("any number"), _("so many:")

    limit = forms.ChoiceField(label=_("Jobs at once"))
    number = forms.IntegerField(
        label=_("Number"),
        help_text=_("Only for a number that is not in the list."),
        min_value=1,
        max_value=LARGEST_LIMIT,
        required=False,
        widget=AdminIntegerFieldWidget,
    )

    @classmethod
    def in_words(cls, value: int | None) -> str:
        return super().in_words(None if value is None else grouped(value))

    def problem(self, typed: int | None) -> Any:
        return "" if typed else _("How many?")


def _by_settings(queue_name: str) -> tuple[str | None, int | None]:
    columns = columns_of(queue_name)
    return columns.limit_key, columns.capacity


LIMITS = QueueOption(
    name="limit",
    column="concurrency",
    names=limited_queues,
    by_settings=_by_settings,
    form=LimitForm,
    change=Queue.limit,
    follow_settings=Queue.limit_by_settings,
    label=_("jobs at once"),
    is_always_shown=True,
    page="limit",
    button=_("Limit"),
    button_in_full=_("Limit the queue %(queue)s"),
    title=_("Limit the queue “%(queue)s”?"),
    heading=_("Limit the queue"),
    explanation=_("So many of its jobs run at once, over all workers; the others wait. Jobs that run are left alone."),
    without=_('Its jobs can be limited once SKIPQUEUE["QUEUES"] names the queue, also with the number None.'),
    changed=_("Jobs of the queue “%(queue)s” that may run at once: %(value)s."),
    follows_settings=_("The limit of the queue “%(queue)s” is that of the settings again."),
)
