"""The history of the queue: tables that count what happened to jobs, by minute and hour, and why attempts failed."""
