"""What limits and rates share. It imports neither."""
