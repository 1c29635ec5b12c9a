"""The statements of policies, under the rules of `store.sql`: batches of jobs, and dependencies between jobs."""

from .batches import *
from .dependencies import *
