"""What operators can do to jobs: a table of verbs, from which the admin and the command line are derived."""
