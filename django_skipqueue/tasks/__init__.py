"""Tasks: functions that `@job` registers, and the options with which their jobs are enqueued."""
