"""The parent process: starts workers, replaces those that die, and takes back what they held.

It runs no user code in its main thread.
"""
