"""Django's backend for PostgreSQL, for databases that no test has declared: Django lets no thread connect to these."""
