"""Archived jobs in the admin: their list, with filters and search, the page of one, and running it again."""
