"""The batches of the demonstration: albums of photos with a callback, and orders, whose steps are a chain.

Invariant: the name of each begins with `DEMO_PREFIX`, by which they are found again.
"""

from django.db.models import QuerySet

from ...batches.batch import Batch
from ...batches.chain import chain
from ...models import JobBatch, PrunedOfBatch
from ...store import Store
from ...values.served import DEMO_PREFIX
from .tasks import HAND_OVER, PRINT_LABEL, PUBLISH_ALBUM, RANDOM, RESERVE_STOCK, RESIZE_PHOTO, SYNC_CUSTOMER

ALBUM_EVERY, ORDER_EVERY = 40, 25
"""Jobs of the stream for each."""


def defer_batches(numbers: range) -> int:
    """Defer the albums and the orders that come with these jobs of the stream. Returns the number of their jobs."""
    albums = sum(_defer_album(number) for number in numbers if number % ALBUM_EVERY == 1)
    return albums + sum(_defer_order(number) for number in numbers if number % ORDER_EVERY == 2)


def finish_batches() -> None:
    """Enqueue the callbacks of the batches that are done, so that no supervisor does it later."""
    store = Store.default()
    ids = set(_batches().filter(finished_at=None).values_list("pk", flat=True))
    while ids:
        ids = store.finish_batches(ids).left


def delete_batches() -> int:
    """Delete all batches of demonstrations; returns their number."""
    batches = _batches()
    ids = list(batches.values_list("pk", flat=True))
    PrunedOfBatch.objects.using(batches.db).filter(batch_id__in=ids).delete()
    number, _ = batches.filter(pk__in=ids).delete()
    return number


def _batches() -> QuerySet[JobBatch]:
    return JobBatch.objects.filter(name__startswith=DEMO_PREFIX)


def _defer_album(number: int) -> int:
    """Photos, and now and then a customer who has no address, so that the batch fails."""
    photos = [RESIZE_PHOTO.s(number + each) for each in range(RANDOM.randint(3, 8))]
    others = [SYNC_CUSTOMER.s(number)] if RANDOM.random() < 0.25 else []
    with Batch(name=f"{DEMO_PREFIX}album-{number}", on_success=PUBLISH_ALBUM.s(number)) as batch:
        return len(batch.add(*photos, *others))


def _defer_order(number: int) -> int:
    labels = [PRINT_LABEL.s(number, parcel=parcel + 1) for parcel in range(RANDOM.randint(1, 3))]
    with Batch(name=f"{DEMO_PREFIX}order-{number}"):
        return len(chain(RESERVE_STOCK.s(number), labels, HAND_OVER.s(number)).defer())
