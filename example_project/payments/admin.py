"""Payments, what was mailed about them, and the addresses that refuse mail."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from .models import BlockedAddress, EmailDelivery, Payment, PaymentLine


class ReadOnly:
    """What happened is not edited."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody adds to it by hand."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody changes it."""
        return False


class LineInline(ReadOnly, admin.TabularInline):
    """The tracks of a payment."""

    model = PaymentLine


class DeliveryInline(ReadOnly, admin.TabularInline):
    """The e-mails about a payment."""

    model = EmailDelivery


@admin.register(Payment)
class PaymentAdmin(ReadOnly, admin.ModelAdmin):
    """Payments."""

    list_display = ["reference", "customer_name", "email", "paid_on", "total"]
    search_fields = ["reference", "customer_name", "email"]
    inlines = [LineInline, DeliveryInline]


@admin.register(EmailDelivery)
class EmailDeliveryAdmin(ReadOnly, admin.ModelAdmin):
    """E-mails that have left."""

    list_display = ["payment", "email_type", "address", "sent_at"]
    list_select_related = ["payment"]
    search_fields = ["address", "payment__reference"]


@admin.register(BlockedAddress)
class BlockedAddressAdmin(admin.ModelAdmin):
    """Addresses that mail came back from. To delete one is to let mail out to it again."""

    list_display = ["address", "reason", "blocked_at"]
    search_fields = ["address"]
