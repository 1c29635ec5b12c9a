"""Each command has a module of the same name."""
