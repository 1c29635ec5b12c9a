"""The command line: `manage.py skipqueue`, and what the other commands share with it."""
