"""Arguments of more types than JSON has."""
