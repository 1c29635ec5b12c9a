"""The statements of policies, under the rules of `store.sql`: batches, dependencies, limits, queues, unique keys.

Beside them those that read, for pages, why attempts fail.
"""

from .batches import *
from .claim_or_admit import *
from .dependencies import *
from .enqueue_limited import *
from .failures_now import *
from .limits_now import *
from .queues import *
from .rates_now import *
from .unique import *
