"""The app that takes payments and e-mails receipts."""

from django.apps import AppConfig


class PaymentsConfig(AppConfig):
    """Payments."""

    name = "payments"
