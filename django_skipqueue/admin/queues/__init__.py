"""The list of queues, with the buttons that pause and resume them."""
