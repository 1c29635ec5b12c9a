"""The verbs of operators: one table, from which the admin and the command line derive theirs."""
