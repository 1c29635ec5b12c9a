"""Running one attempt, and many at once: the executor, threads, the event loop, interruption. Touches no table."""
