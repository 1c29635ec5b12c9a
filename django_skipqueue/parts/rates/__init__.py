"""Rates: how often jobs of a key start."""
