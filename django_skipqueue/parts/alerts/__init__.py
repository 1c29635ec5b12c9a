"""Alerts: announce each problem of the verdict once when it begins, and once when it is over."""
