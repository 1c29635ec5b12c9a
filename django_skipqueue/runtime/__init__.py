"""Shared by supervisors and workers: loop, control connection, wake-up, event dispatcher, log queue, exit codes."""
