"""The list of queues, with the buttons that pause, resume and limit them."""
