"""The admin's job list, and the page of a single job."""
