"""The subcommands of `manage.py skipqueue`, each in a module of its own."""
