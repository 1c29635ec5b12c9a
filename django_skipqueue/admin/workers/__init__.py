"""Workers in the admin."""
