"""Schedules: tasks that supervisors enqueue at certain times or at an interval."""
