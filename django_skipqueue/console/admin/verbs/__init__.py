"""How the admin applies operators' verbs, such as retry, to one job or to many."""
