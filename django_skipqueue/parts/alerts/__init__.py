"""Alerts: announce each problem that the console finds when it begins and when it is over."""
