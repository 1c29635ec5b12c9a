"""Jobs in the admin: their list, and the page of one."""
