"""Parts that the surfaces of operators share, the admin and the command line: lists of jobs, states, workers."""
