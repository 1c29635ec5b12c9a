"""What attempts note while they run: their progress, and their log lines. Kept with the job."""
