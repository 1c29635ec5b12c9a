"""What attempts note: their progress and their logs."""
