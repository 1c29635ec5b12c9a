"""Plain values passed between the rooms. Pure: nothing here accesses a table, and only `columns` imports Django."""
