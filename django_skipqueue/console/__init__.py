"""What operators see and do, in the admin, the command line, the metrics and the doctor."""
