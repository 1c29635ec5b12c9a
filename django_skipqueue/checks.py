"""System checks: a mistake in the set-up is named by `manage.py check`, not met at night. Each has an id and a hint."""
def register(): pass
