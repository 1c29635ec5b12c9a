"""The metrics of the queue for Prometheus."""
