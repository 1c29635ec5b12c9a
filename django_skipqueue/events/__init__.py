"""Events about jobs and workers, and their sinks: Django's signals and the log."""
