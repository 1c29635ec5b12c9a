"""What happens to jobs and workers, and who is told: signal receivers and the log."""
