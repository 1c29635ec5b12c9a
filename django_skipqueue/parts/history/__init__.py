"""What has happened to jobs, added up: roll-ups, and failures by cause."""
