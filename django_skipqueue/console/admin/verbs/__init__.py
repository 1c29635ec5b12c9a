"""The verbs of operators: their table, and how a verb is applied to one job or to many."""
