"""Separate Django apps, which a project can add to its `INSTALLED_APPS`."""
