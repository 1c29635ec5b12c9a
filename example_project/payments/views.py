"""The only page of the shop: a form to buy a track, and the payments."""

from datetime import timedelta

from django.contrib import messages
from django.core.paginator import Paginator
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from .forms import PaymentForm
from .jobs import send_receipt, summarize_customer, write_statement
from .models import Payment

SUMMARY_DELAY = timedelta(seconds=10)
"""The time between the last payment of a customer and the summary."""


def home(request: HttpRequest) -> HttpResponse:
    """Show the payments and whether their receipts were sent. A POST request makes a payment."""
    form = PaymentForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        payment = take_payment(form)
        messages.success(request, f"Thank you, {payment.customer_name}! The receipt is on its way to {payment.email}.")
        return redirect("home")
    payments = Paginator(Payment.objects.with_receipts(), 25).get_page(request.GET.get("page"))
    return render(request, "payments/home.html", {"form": form, "payments": payments})


@transaction.atomic
def take_payment(form: PaymentForm) -> Payment:
    """Save the payment, and defer its jobs, in one transaction."""
    payment: Payment = form.save()
    send_receipt.defer(payment_id=payment.pk)
    write_statement.defer(email=payment.email, payment_id=payment.pk)
    summarize_customer.using(run_after=SUMMARY_DELAY).defer(email=payment.email)
    return payment
