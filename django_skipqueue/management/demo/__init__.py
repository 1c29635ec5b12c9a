"""The demonstration: a stream of believable jobs, in queues and of tasks that only its own worker knows."""
