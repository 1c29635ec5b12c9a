"""A task of Django's own task framework, which Django 6.0 introduced. The same worker runs it."""

from typing import Any

import django
from django.db.models import Sum
from django.db.models.functions import ExtractYear

from .models import Payment

HAS_TASKS = django.VERSION >= (6, 0)


def turnover_by_year() -> dict[str, str]:
    """The amount that was paid in each year, as text, because JSON has no decimals."""
    years = Payment.objects.annotate(year=ExtractYear("paid_on")).values_list("year").annotate(paid=Sum("total"))
    return {str(year): f"{paid:,.2f}" for year, paid in years.order_by("year")}


turnover: Any = None
"""`turnover_by_year` as a task; `None` before Django 6.0."""

if HAS_TASKS:
    from django.tasks import task

    turnover = task(turnover_by_year)
