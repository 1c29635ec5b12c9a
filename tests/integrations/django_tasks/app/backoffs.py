"""Backoffs that settings name by their path."""


def at_once(attempt: int) -> float:
    return 0.0


def a_minute(attempt: int) -> float:
    return 60.0
