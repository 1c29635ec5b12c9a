"""How many jobs a worker claims, from which queues, and from which place in them."""
