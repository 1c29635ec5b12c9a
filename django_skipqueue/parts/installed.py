"""The parts of the package. Only the app reads this list, when Django starts. A new part is two lines here."""

from ..values.part import Part
from .alerts.part import PART as ALERTS
from .archive.part import PART as ARCHIVE
from .batches.part import PART as BATCHES
from .databases.part import PART as DATABASES
from .history.part import PART as HISTORY
from .keyed.part import PART as KEYED
from .limits.part import PART as LIMITS
from .rates.part import PART as RATES
from .schedules.part import PART as SCHEDULES
from .steps.part import PART as STEPS
from .unique.part import PART as UNIQUE

PARTS: tuple[Part, ...] = (
    UNIQUE,
    KEYED,
    LIMITS,
    RATES,
    SCHEDULES,
    STEPS,
    BATCHES,
    DATABASES,
    HISTORY,
    ARCHIVE,
    ALERTS,
)
"""In the order in which a supervisor runs their services."""
