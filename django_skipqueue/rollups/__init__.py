"""Roll-ups: what has happened to jobs, counted in each process and added up in the database every few seconds."""
