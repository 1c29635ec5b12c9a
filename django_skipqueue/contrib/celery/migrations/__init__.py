"""The table of the app."""
