"""Several databases that hold queues, as the core sees them."""

from ...values.part import Part
from .choose import AmongSeveral

PART = Part(
    name="databases",
    placement=AmongSeveral(),
)
