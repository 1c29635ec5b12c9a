"""The notes of attempts: their progress and their logs."""
