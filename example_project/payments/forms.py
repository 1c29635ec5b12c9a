"""The form in which a customer buys a track."""

from decimal import Decimal
from typing import Any, NamedTuple

from django import forms
from django.utils import timezone

from .models import Payment, PaymentLine


class Track(NamedTuple):
    """A track on sale."""

    title: str
    artist: str
    price: Decimal

    def __str__(self) -> str:
        return f"{self.title} by {self.artist}, ${self.price}"


SHELF = [
    Track("Balls to the Wall", "Accept", Decimal("0.99")),
    Track("Smells Like Teen Spirit", "Nirvana", Decimal("0.99")),
    Track("Garota de Ipanema", "Dick Farney", Decimal("0.99")),
]


class PaymentForm(forms.ModelForm):
    """A customer buys one track."""

    track = forms.TypedChoiceField(
        choices=[(index, str(track)) for index, track in enumerate(SHELF)], coerce=lambda index: SHELF[int(index)]
    )

    class Meta:
        model = Payment
        fields = ["customer_name", "email"]

    def save(self, commit: bool = True) -> Any:
        """Save the payment, and one payment line with the track."""
        track: Track = self.cleaned_data["track"]
        self.instance.paid_on = timezone.localdate()
        self.instance.total = track.price
        payment = super().save(commit)
        PaymentLine.objects.create(
            payment=payment, position=1, track=track.title, artist=track.artist, unit_price=track.price
        )
        return payment
