"""What supervisors and workers share: control connection, wake-up, event dispatcher, log queue, options, exit codes."""
