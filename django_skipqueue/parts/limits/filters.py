"""The filter of the job list by the key of a limit."""

from django.utils.translation import gettext_lazy as _

from ...console.admin.jobs.filters import KeyFilter
from ...console.job_states import Key
from .states import key_of_limit


class LimitFilter(KeyFilter):
    title = _("key of the limit")
    parameter_name = "limit_of"
    column = "limit_key"
    without = _("of a job that is gone, or has no limit")

    def index(self, text: str) -> Key:
        return key_of_limit(text)
