"""The statements of policies, under the rules of `store.sql`: batches, dependencies, unique keys."""

from .batches import *
from .dependencies import *
from .unique import *
