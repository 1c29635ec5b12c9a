"""Schedules: tasks that are enqueued at times, or at an interval."""
