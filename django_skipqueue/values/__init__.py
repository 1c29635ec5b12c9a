"""Plain values, and functions of them. Pure: nothing here accesses a table, and only `bounds` imports Django."""
