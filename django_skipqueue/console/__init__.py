"""Everything for operators: the admin, the command line, the metrics and the doctor."""
