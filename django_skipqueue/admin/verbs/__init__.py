"""What operators can do to jobs: the table of verbs, and how a verb is applied to one job or to many."""
