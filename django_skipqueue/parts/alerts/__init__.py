"""Alerts: a dead-man's switch that announces each incident once, and its end once."""
