"""Tasks: functions registered with `@job`, and the options for enqueuing their jobs."""
