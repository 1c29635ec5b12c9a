"""The tables and indexes of the queue."""
