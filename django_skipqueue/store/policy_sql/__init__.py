"""The statements of policies, under the rules of `store.sql`: batches of jobs."""

from .batches import *
