"""What supervisors and workers share: the control connection, the wake-up, options, exit codes."""
