"""How many jobs a worker claims, from which queues, and from which position in each."""
