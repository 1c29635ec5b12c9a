"""The page of limits and sequences: the keys for which jobs wait, and those that have halted."""
