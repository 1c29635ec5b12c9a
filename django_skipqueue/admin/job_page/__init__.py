"""What the page of one job shows: its attempts, its history, and why it waits or was not retried."""
