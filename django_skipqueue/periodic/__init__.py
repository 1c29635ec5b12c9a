"""Periodic jobs: entries in code, settings and admin, each with a row, and the firing of those that are due."""
