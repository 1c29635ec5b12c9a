"""Parts that the pages share: cells, counts, durations, states of jobs, masked arguments."""
