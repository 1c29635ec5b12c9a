"""Jobs in the admin: their list, with filters and search, and the views of the list and of one job."""
