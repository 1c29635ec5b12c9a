"""The contents of the page of one job: its attempts, its history, and why it waits or was not retried."""
