"""The dashboard: cards, charts and tables that say in one minute whether the queue is well, and what is wrong."""
