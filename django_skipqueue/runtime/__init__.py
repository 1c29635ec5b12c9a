"""What supervisors and workers share: the control connection, the wake-up, the event dispatcher, the log queue, options
and exit codes."""
