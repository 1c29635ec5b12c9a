"""The history: roll-ups count what has happened to jobs, and failed attempts by their cause."""
