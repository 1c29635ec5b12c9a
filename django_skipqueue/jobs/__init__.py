"""What a developer writes: tasks, their options, their calls and their arguments."""
