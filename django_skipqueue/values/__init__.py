"""Plain values that travel between the rooms. Pure: nothing here imports Django's ORM or touches a table."""
