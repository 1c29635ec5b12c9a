"""Alerts: announce each problem of the verdict when it begins, and when it is over."""
