"""Bridges to other libraries, each imported by the project that uses it."""
