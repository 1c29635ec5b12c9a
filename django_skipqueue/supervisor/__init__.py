"""The parent process: starts workers, replaces those that die, and takes back what they held. Runs no user code."""
