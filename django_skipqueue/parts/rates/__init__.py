"""Rate limits: how often jobs with the same key start."""
