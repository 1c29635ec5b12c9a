"""A database backend for databases that a test has not declared, to which Django would not let a thread connect."""
