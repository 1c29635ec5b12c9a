"""A backend for Django's tasks, on this queue."""
