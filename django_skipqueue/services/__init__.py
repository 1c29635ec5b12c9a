"""What a supervisor does at intervals, each in one bounded batch."""
