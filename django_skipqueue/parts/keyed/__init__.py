"""Code that the parts `limits` and `rates` share: jobs with keys. It imports neither part."""
