"""The admin pages of payments, of the e-mails about payments, and of blocked addresses."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from .models import BlockedAddress, EmailDelivery, Payment, PaymentLine


class ReadOnly:
    """Makes rows read-only in the admin, because they record what has happened."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: no row can be added by hand."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: no row can be changed."""
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
    """E-mails that were sent."""

    list_display = ["payment", "email_type", "address", "sent_at"]
    list_select_related = ["payment"]
    search_fields = ["address", "payment__reference"]


@admin.register(BlockedAddress)
class BlockedAddressAdmin(admin.ModelAdmin):
    """Addresses from which mail came back. The shop sends mail to an address again once its row is deleted."""

    list_display = ["address", "reason", "blocked_at"]
    search_fields = ["address"]
