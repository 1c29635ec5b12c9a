"""The metrics of the queue for Prometheus: `path("metrics/skipqueue", django_skipqueue.metrics.view)`."""

from .page import view

__all__ = ["view"]
