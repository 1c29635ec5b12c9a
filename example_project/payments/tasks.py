"""Work by Django's own interface, which Django 6.0 brought. It runs on the same worker, beside the jobs."""

from typing import Any

import django
from django.db.models import Sum
from django.db.models.functions import ExtractYear

from .models import Payment

HAS_TASKS = django.VERSION >= (6, 0)


def turnover_by_year() -> dict[str, str]:
    """What was paid in each year, as text: JSON has no decimals."""
    years = Payment.objects.annotate(year=ExtractYear("paid_on")).values_list("year").annotate(paid=Sum("total"))
    return {str(year): f"{paid:,.2f}" for year, paid in years.order_by("year")}


turnover: Any = None
"""`turnover_by_year` as a task; `None` where Django has no tasks."""

if HAS_TASKS:
    from django.tasks import task

    turnover = task(turnover_by_year)
