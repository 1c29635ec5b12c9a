"""Plain values passed between the packages. Pure: nothing here imports Django or accesses a table."""
