"""The statements of policies, under the rules of `store.sql`.

They are those of the archive, batches, dependencies, limits, queues and unique keys.
"""

from .archive import *
from .batches import *
from .claim_ahead import *
from .claim_or_admit import *
from .dependencies import *
from .enqueue_limited import *
from .limits_now import *
from .queues import *
from .rates_now import *
from .unique import *
