"""The parent of several supervisors, where several databases hold queues."""
