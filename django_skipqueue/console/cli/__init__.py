"""The command line: `manage.py skipqueue`, and the code that other commands share with it."""
