"""Django apps of their own, which a project adds to its `INSTALLED_APPS`."""
