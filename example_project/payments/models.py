"""The models of payments, of e-mails about payments, and of blocked addresses."""

from typing import Any

from django.db import models
from django.db.models import Exists, OuterRef
from django.utils.crypto import get_random_string


def new_reference() -> str:
    """A random reference without letters and digits that look alike, which a customer can read out on the telephone."""
    return "W" + get_random_string(8, "23456789ABCDEFGHJKLMNPQRSTUVWXYZ")


class PaymentQuerySet(models.QuerySet["Payment"]):
    """Payments, and whether their receipts were sent."""

    def with_receipts(self) -> Any:
        """Annotate each payment with `receipt_sent` and `address_blocked`."""
        receipts = EmailDelivery.objects.filter(payment=OuterRef("pk"), email_type=EmailDelivery.Type.RECEIPT)
        return self.annotate(
            receipt_sent=Exists(receipts),
            address_blocked=Exists(BlockedAddress.objects.filter(address__iexact=OuterRef("email"))),
        )


class Payment(models.Model):
    """Money that a customer paid for some tracks."""

    reference = models.CharField(max_length=20, unique=True, default=new_reference)
    customer_name = models.CharField("name", max_length=100)
    email = models.EmailField("e-mail")
    city = models.CharField(max_length=100, blank=True)
    country = models.CharField(max_length=100, blank=True)
    paid_on = models.DateField()
    total = models.DecimalField(max_digits=10, decimal_places=2)

    objects = PaymentQuerySet.as_manager()

    class Meta:
        ordering = ["-paid_on", "-pk"]

    def __str__(self) -> str:
        return f"{self.reference}: {self.customer_name}, ${self.total}"


class PaymentLine(models.Model):
    """One track of a payment."""

    payment = models.ForeignKey(Payment, on_delete=models.CASCADE, related_name="lines")
    position = models.PositiveSmallIntegerField()
    track = models.CharField(max_length=200)
    artist = models.CharField(max_length=200)
    unit_price = models.DecimalField(max_digits=10, decimal_places=2)
    quantity = models.PositiveSmallIntegerField(default=1)

    class Meta:
        ordering = ["position"]
        constraints = [models.UniqueConstraint(fields=["payment", "position"], name="payments_line_position")]

    def __str__(self) -> str:
        return f"{self.track} by {self.artist}"


class EmailDelivery(models.Model):
    """A sent e-mail about a payment. Its unique key makes `send_receipt` safe to run again."""

    class Type(models.TextChoices):
        """The kinds of e-mails."""

        RECEIPT = "receipt"

    payment = models.ForeignKey(Payment, on_delete=models.CASCADE, related_name="deliveries")
    email_type = models.CharField(max_length=20, choices=Type)
    address = models.EmailField()
    sent_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "e-mail deliveries"
        constraints = [models.UniqueConstraint(fields=["payment", "email_type"], name="payments_one_email_of_a_type")]

    def __str__(self) -> str:
        return f"{self.email_type} to {self.address}"


class StatementLine(models.Model):
    """A payment on the statement of its customer, with the total of all payments so far."""

    payment = models.OneToOneField(Payment, on_delete=models.CASCADE, related_name="statement_line")
    total_paid = models.DecimalField(max_digits=10, decimal_places=2)

    def __str__(self) -> str:
        return f"{self.payment.reference}: ${self.total_paid}"


class BlockedAddress(models.Model):
    """An address from which mail has come back. The shop sends it no mail until somebody deletes this row."""

    address = models.EmailField(unique=True)
    reason = models.CharField(max_length=200)
    blocked_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "blocked addresses"

    def __str__(self) -> str:
        return self.address
